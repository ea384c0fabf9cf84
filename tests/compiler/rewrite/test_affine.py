"""Weights as quantizers write them are understood: the values are those of onnx itself."""

from collections.abc import Callable

import numpy as np
import pytest

from pliant.compiler.rewrite.affine import affine_weights
from tests.compiler.passes.chains import Chain

K, N = 12, 8
FLOAT = 1


def _codes(c: Chain, dtype: str, *shape: int) -> str:
    low, high = (0, 256) if dtype == "uint8" else (-127, 128)
    return c.constant("q", np.random.default_rng(0).integers(low, high, shape), dtype)


def _positive(c: Chain, name: str, *shape: int) -> str:
    return c.constant(name, np.random.default_rng(1).random(shape) + 0.5)


def _symmetric(c: Chain) -> str:
    real = c.add("f", "Cast", _codes(c, "int8", K, N), to=FLOAT)
    return c.add("w", "Mul", _positive(c, "s", 1, N), real)


def _asymmetric(c: Chain) -> str:
    real = c.add("f", "Cast", _codes(c, "uint8", K, N), to=FLOAT)
    zero = c.constant("z", np.arange(120, 120 + N, dtype=np.float32))
    return c.add("w", "Div", c.add("d", "Sub", real, zero), _positive(c, "s"))


def _shifted(c: Chain) -> str:
    return c.add("y", "Mul", c.add("w", "Add", _symmetric_as(c, "v"), _positive(c, "b", K, 1)), 0.5)


def _symmetric_as(c: Chain, name: str) -> str:
    real = c.add("f", "Cast", _codes(c, "int8", K, N), to=FLOAT)
    return c.add(name, "Mul", real, _positive(c, "s", 1, N))


def _by_axis(c: Chain) -> str:
    zero = c.constant("z", np.arange(K), "uint8")
    return c.add("w", "DequantizeLinear", _codes(c, "uint8", K, N), _positive(c, "s", K), zero, axis=-2)


def _by_block(c: Chain) -> str:
    zero = c.constant("z", np.arange(3 * N).reshape(3, N), "int8")
    x, s = _codes(c, "int8", K, N), _positive(c, "s", 3, N)
    return c.add("t", "Transpose", c.add("w", "DequantizeLinear", x, s, zero, axis=0, block_size=4))


def _in_groups(c: Chain) -> str:
    """Blocks written as a dimension of their own, as before opset 21."""
    real = c.add("f", "Cast", _codes(c, "int8", N, 3, 4), to=FLOAT)
    scaled = c.add("v", "Mul", real, _positive(c, "s", N, 3, 1))
    return c.add("t", "Transpose", c.add("w", "Reshape", scaled, [N, 1, K]), perm=[1, 2, 0])


def _half(c: Chain) -> str:
    return c.add("w", "Cast", c.constant("q", np.linspace(-2, 2, K * N).reshape(K, N), "float16"), to=FLOAT)


CHAINS: dict[str, Callable[[Chain], str]] = {
    "Cast and Mul": _symmetric,
    "Cast, Sub and Div": _asymmetric,
    "an offset": _shifted,
    "DequantizeLinear by axis": _by_axis,
    "DequantizeLinear by block, transposed": _by_block,
    "groups of a reshape": _in_groups,
    "half floats": _half,
}


@pytest.mark.parametrize("name", CHAINS)
def test_weights_are_what_onnx_makes_of_them(name: str) -> None:
    """Every way of writing scales; a division may round once more."""
    c = Chain(x=(2, 3))
    y = CHAINS[name](c)
    graph = c.graph(c.add("out", "Mul", y, 1.5))
    weights = affine_weights(graph)[y]
    values = weights.values(graph.constants[weights.codes.tensor])
    np.testing.assert_allclose(values, c.values[y], rtol=3e-7)


@pytest.mark.parametrize("before", [(6, 4), (3, 2, 4), (6, 2, 2)])
@pytest.mark.parametrize("after", [(6, 4), (24,), (3, 8), (1, 3, 2, 4, 1), (2, 12)])
@pytest.mark.parametrize("scales", [(1, 1), (6, 1), (6, 2), (1, 4), (3, 1), (2, 1)])
def test_a_reshape_is_followed_exactly_or_not_at_all(
    before: tuple[int, ...], after: tuple[int, ...], scales: tuple[int, int]
) -> None:
    """A scale of blocks stays one of blocks only where these are not cut; wrong scales would be silent."""
    c = Chain(x=(2, 3))
    q = c.constant("q", np.random.default_rng(0).integers(-9, 9, (6, 4)), "int8")
    s = _positive(c, "s", *scales)
    is_blocked = any(n not in (1, m) for n, m in zip(scales, (6, 4), strict=True))
    if is_blocked:
        axis = 0 if scales[0] not in (1, 6) else 1
        full = [6, 4]
        full[axis] = scales[axis]
        c.constants.pop("s")
        s = _positive(c, "t", *full)
        w = c.add("w", "DequantizeLinear", q, s, axis=axis, block_size=(6, 4)[axis] // scales[axis])
    else:
        w = c.add("w", "Mul", c.add("f", "Cast", q, to=FLOAT), s)
    y = c.add("y", "Reshape", c.add("v", "Reshape", w, [*before]), [*after])
    graph = c.graph(c.add("out", "Mul", y, 1.5))
    found = affine_weights(graph)
    for x in ("v", "y"):
        if x in found:
            np.testing.assert_allclose(found[x].values(graph.constants["q"]), c.values[x], rtol=3e-7)
    if scales == (1, 1):
        assert "y" in found
