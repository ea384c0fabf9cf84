"""The oracle is checked once against an independent implementation: torch in float64."""

import numpy as np
import pytest

from tests.kernels import reference

torch = pytest.importorskip("torch", reason="torch checks the oracle; install pliant[train]")
functional = torch.nn.functional


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


def _same(ours: np.ndarray, theirs: "torch.Tensor") -> None:
    """Both round at 1e-16; sums of a few hundred terms stay below 1e-12."""
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-11, atol=1e-12)


def test_layer_norm_and_softmax_are_torchs() -> None:
    """Biased variance, eps inside the root, last axis."""
    x, weight, bias = _normal(7, 50), _normal(50), _normal(50)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    _same(
        reference.layer_norm(x, weight, bias, 1e-5),
        functional.layer_norm(tensors[0], (50,), *tensors[1:], 1e-5),
    )
    _same(reference.softmax(x), torch.softmax(tensors[0], -1))
    _same(reference.mean(x), tensors[0].mean(0))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "tanh"])
def test_activations_are_torchs(name: str) -> None:
    """The two gelus differ by up to 5e-4: taking one for the other would pass a careless test."""
    x = np.linspace(-12, 12, 1001)
    theirs = {
        "gelu": functional.gelu,
        "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
        "relu": torch.relu,
        "tanh": torch.tanh,
    }[name]
    _same(reference.activation(x, name), theirs(torch.from_numpy(x)))


def test_an_unknown_activation_is_an_error() -> None:
    """No silent identity."""
    with pytest.raises(ValueError, match="swish"):
        reference.activation(np.zeros(1), "swish")


def test_attention_is_torchs() -> None:
    """Columns of a head lie as [q | k | v], heads side by side."""
    qkv = _normal(9, 4 * 3 * 8)
    q, k, v = torch.from_numpy(qkv.reshape(9, 4, 3, 8).transpose(2, 1, 0, 3).copy())
    theirs = functional.scaled_dot_product_attention(q, k, v, scale=0.3)
    _same(reference.attention(qkv, 4, 0.3), theirs.permute(1, 0, 2).reshape(9, -1))


def test_gemm_adds_bias_before_the_activation_and_the_residual_after() -> None:
    """The order is part of every epilogue's contract."""
    a, b, bias, residual = _normal(3, 5), _normal(5, 4), np.arange(4.0), _normal(3, 4) * 2
    theirs = functional.gelu(torch.from_numpy(a @ b + bias)) + torch.from_numpy(residual)
    _same(reference.gemm(a, b, bias, "gelu", residual), theirs)
    _same(reference.gemm(a, b), torch.from_numpy(a) @ torch.from_numpy(b))


def test_embeddings_start_at_their_first_position() -> None:
    """RoBERTa's positions begin at row 2."""
    word, position, kind = _normal(20, 6), _normal(30, 6), _normal(2, 6) * 3
    ids, types = np.array([3, 3, 19]), np.array([0, 1, 1])
    expected = word[ids] + position[[2, 3, 4]] + kind[types]
    _same(reference.embed(ids, word, position, 2, types, kind), torch.from_numpy(expected))
    _same(reference.embed(ids, word, position, 2), torch.from_numpy(word[ids] + position[[2, 3, 4]]))
