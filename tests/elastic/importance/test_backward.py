"""The encoder's derivative in numpy against torch's own, in float64, for every family and activation."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch.nn import functional

from pliant.elastic.importance.backward import activate, backward, forward, loss_gradient, slope
from pliant.errors import InputError
from pliant.models.spec import Activation, Family, Head, ModelSpec
from pliant.store.coding.cut_slices import LINEARS
from pliant.store.layers import LayerWeights
from pliant.store.store_files import HeadWeights, LinearWeights
from tests.tiny import DENSE, FAMILIES, random_tensors, tiny_spec

ACTIVATIONS: tuple[Activation, ...] = ("gelu", "gelu_tanh", "relu", "tanh")
LENGTHS = (4, 1, 7)
LABELS = np.array([2, 0, 1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weights_derivative_is_torchs(family: Family, activation: Activation) -> None:
    """A wrong sign or a forgotten branch would order shards by noise, and nothing else would notice."""
    head = Head("mean" if activation == "relu" else "cls", DENSE[family], ("a", "b", "c"))
    _check(tiny_spec(family, n_layers=3, activation=activation, head=head), seed=FAMILIES.index(family))


def test_a_head_without_its_square_layer_is_differentiated_too() -> None:
    """The shipped model's head is a mean and a classifier, nothing between."""
    _check(tiny_spec(head=Head("mean", None, ("a", "b", "c"))), seed=9)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_slope_is_what_finite_differences_say(activation: Activation) -> None:
    """Closed forms of derivatives are easily mistyped, and matter most around 0."""
    x = np.linspace(-6, 6, 1001)[:, None].astype(np.float32) + np.float32(0.003)
    h = 2.0**-6
    rise = (activate(activation, x + np.float32(h)) - activate(activation, x - np.float32(h))) / (2 * h)
    away = np.abs(x) > 2 * h  # relu has a corner
    # Error h^2 / 6 times a third derivative below 3, plus float32 rounding of values to 6 over 2h.
    np.testing.assert_allclose(slope(activation, x)[away], rise[away], atol=2.0e-4)
    assert np.isfinite(slope(activation, np.array([[-1e4, 1e4]], np.float32))).all()


def test_an_embedding_head_has_no_loss() -> None:
    """There are no labels to be right about."""
    head = HeadWeights(None, None)
    with pytest.raises(InputError, match="needs a classifier"):
        loss_gradient(Head("mean", None, None), head, np.ones((2, 4), np.float32), ((0, 2),), np.array([0]))


def _check(spec: ModelSpec, seed: int) -> None:
    """All derivatives by weights and by the input, and the losses."""
    tensors = random_tensors(spec, seed)
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((n, spec.hidden)) for n in LENGTHS]
    leaves = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in tensors.items()}
    xs = [torch.tensor(x, requires_grad=True) for x in inputs]
    losses = [
        functional.cross_entropy(_torch_logits(spec, leaves, x), torch.tensor(label))
        for x, label in zip(xs, LABELS, strict=True)
    ]
    torch.stack(losses).sum().backward()

    ends = np.cumsum(LENGTHS).tolist()
    bounds = tuple(zip([0, *ends[:-1]], ends, strict=True))
    layers = [_layer(tensors, layer) for layer in range(spec.n_layers)]
    x = np.concatenate(inputs).astype(np.float32)
    tapes = []
    for w in layers:
        x, tape = forward(spec, w, x, bounds)
        tapes.append(tape)
    head = HeadWeights(
        _linear(tensors, "head.dense") if spec.head.dense else None, _linear(tensors, "head.classifier")
    )
    loss, dy = loss_gradient(spec.head, head, x, bounds, LABELS)
    # float32 through three layers of 32 channels: about 1e-6 relative a layer, derivatives of order 1.
    np.testing.assert_allclose(loss, [float(v.detach()) for v in losses], atol=1e-5)
    for layer in reversed(range(spec.n_layers)):
        tape = tapes[layer]
        dy, outputs = backward(spec, layers[layer], tape, bounds, dy)
        assert set(outputs) == set(LINEARS)
        for name, d in outputs.items():
            expected = leaves[f"layers.{layer}.{name}.weight"].grad
            assert expected is not None
            np.testing.assert_allclose(d.T @ tape.inputs[name], expected.numpy(), atol=2e-5, err_msg=name)
    found = np.concatenate([v.grad.numpy() for v in xs if v.grad is not None])
    np.testing.assert_allclose(dy, found, atol=2e-5)


def _layer(tensors: Mapping[str, np.ndarray], layer: int) -> LayerWeights:
    p = f"layers.{layer}."
    norms = {
        n: np.stack([tensors[f"{p}{n}.weight"], tensors[f"{p}{n}.bias"]])
        for n in ("attention_norm", "output_norm")
    }
    return LayerWeights(**{n: _linear(tensors, p + n) for n in LINEARS}, **norms)


def _linear(tensors: Mapping[str, np.ndarray], name: str) -> LinearWeights:
    return LinearWeights(tensors[name + ".weight"], tensors[name + ".bias"])


def _torch_logits(spec: ModelSpec, w: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The encoder and head on one input [T, hidden], from the papers' equations, on torch's operators."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (spec.hidden,), w[name + ".weight"], w[name + ".bias"], spec.norm_eps)

    for layer in range(spec.n_layers):
        p = f"layers.{layer}."
        q, k, v = (
            linear(x, p + n).view(len(x), spec.n_heads, -1).transpose(0, 1) for n in ("query", "key", "value")
        )
        shares = (q @ k.transpose(1, 2) / math.sqrt(spec.head_dim)).softmax(-1)
        context = (shares @ v).transpose(0, 1).reshape(len(x), -1)
        x = norm(x + linear(context, p + "output"), p + "attention_norm")
        inner = _torch_activate(spec.activation, linear(x, p + "up"))
        x = norm(x + linear(inner, p + "down"), p + "output_norm")
    pooled = x.mean(0) if spec.head.pooling == "mean" else x[0]
    if spec.head.dense:
        pooled = _torch_activate(spec.head.dense, linear(pooled, "head.dense"))
    return linear(pooled, "head.classifier")


def _torch_activate(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    match kind:
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu":
            return functional.relu(x)
        case "tanh":
            return torch.tanh(x)
