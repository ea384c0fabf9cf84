"""Sizes in random order: an executable that was bound to one size answers for another as onnxruntime does."""

from typing import Any

import numpy as np
import onnxruntime
import pytest

from pliant.api.compile_onnx import compile
from pliant.ir.graph import Graph
from pliant.ir.symbolic import is_symbolic
from tests.models.onnx_models import parse

HALVED = """
    g (float[B,4,N] x) => (float[B,4,M] y, float[B,4,L] z)
    <float[4,4,3] w = {0.5, -0.25, 0.125, 1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.75,
                       0.5, -0.5, 0.25, 1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.75,
                       0.5, -0.25, 0.5, 1, 2, -1, 0.5, 0.75, 3, 1, -2, 0.75,
                       0.5, -0.25, 0.125, -1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.25}>
    {
      a = Conv<kernel_shape=[3], strides=[2], pads=[1,1]>(x, w) y = Relu(a)
      z = MaxPool<kernel_shape=[2], strides=[2], ceil_mode=1>(y)
    }
"""
"""Even and odd sizes give equal ones behind a stride."""

STRIDED = """
    g (float[B,N] x) => (float[B,M] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {1000}, int64[1] axis = {1}, int64[1] two = {2},
     int64[1] three = {3}, int64[1] back = {-1}, int64[1] first = {-1000}>
    {
      even = Slice(x, zero, end, axis, two) odd = Slice(x, one, end, axis, three)
      turned = Slice(x, back, first, axis, back) y = Concat<axis=1>(even, odd, turned)
    }
"""

SPLIT = """
    g (float[B,N] x) => (float[B,M] y, int64[1] half)
    <int64[1] zero = {0}, int64[1] axis = {1}, int64[1] two = {2}, int64[1] end = {1000}>
    {
      sizes = Shape(x) n = Gather(sizes, axis) half = Div(n, two)
      low = Slice(x, zero, half, axis) high = Slice(x, half, end, axis)
      s = ReduceMax<axes=[1], keepdims=1>(low) m = Mul(high, s) y = Concat<axis=1>(m, low)
    }
"""
"""Two halves, of which one is larger where the size is odd."""

FILLED = """
    g (float[B,N] x) => (float[B,R,4] y, float[B,R] s)
    <int64[1] axis = {1}, int64[1] last = {2}, int64[1] four = {4}, int64[3] none = {0, 0, 0},
     int64[3] rows = {0, -1, 4}>
    {
      sizes = Shape(x) n = Gather(sizes, axis) more = Mod(n, four) less = Sub(four, more)
      left = Mod(less, four) pads = Concat<axis=0>(none, left) padded = Pad(x, pads)
      y = Reshape(padded, rows) s = ReduceSum<keepdims=0>(y, last)
    }
"""
"""Padded to a multiple of four."""

RESIZED = """
    g (float[1,2,N,M] x) => (float[1,2,P,Q] y)
    <float[4] scales = {1, 1, 2, 0.5}>
    { y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">
        (x, , scales) }
"""

PRODUCTS = """
    g (float[B,N,8] x, float[B,M,8] z) => (float[B,N,M] s, float[B,N,8] y)
    { t = Transpose<perm=[0,2,1]>(z) p = MatMul(x, t) s = Softmax<axis=-1>(p) y = MatMul(s, z) }
"""
"""Rows of two lengths at once."""

MODELS = {
    "halved": (HALVED, lambda n, m: {"x": (2, 4, n)}),
    "strided": (STRIDED, lambda n, m: {"x": (3, n)}),
    "split": (SPLIT, lambda n, m: {"x": (2, n)}),
    "filled": (FILLED, lambda n, m: {"x": (2, n)}),
    "resized": (RESIZED, lambda n, m: {"x": (1, 2, n, m)}),
    "products": (PRODUCTS, lambda n, m: {"x": (2, n, 8), "z": (2, m, 8)}),
}


BOUND = {"products"}
"""Sizes of the others are divided and rounded, so that each is compiled."""


@pytest.mark.filterwarnings("ignore:.* is compiled again")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_random_sizes_answer_as_onnxruntime_does(name: str, seed: int, lowered: list[Graph]) -> None:
    """Sizes that were met before return too, when the table stands at another size."""
    text, shapes = MODELS[name]
    model = parse(text)
    session = compile(model, threads=2, images=4)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 150, (10, 2)).tolist()
    for i in [*range(10), *rng.integers(0, 10, 6).tolist()]:
        feeds: dict[str, Any] = {
            x: rng.standard_normal(shape).astype(np.float32) for x, shape in shapes(*sizes[i]).items()
        }
        found = session.run(feeds)
        for own, other in zip(found.values(), peer.run(None, feeds), strict=True):
            assert own.shape == other.shape, sizes[i]
            # Sums of at most 12 products, or of 150 behind a softmax.
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5, err_msg=str(sizes[i]))
    is_open = [any(is_symbolic(n) for t in graph.types.values() for n in t.shape) for graph in lowered]
    assert set(is_open) == {name in BOUND}
    if name in BOUND:
        assert len(lowered) <= 6  # of ten pairs of sizes, more than half are bound
