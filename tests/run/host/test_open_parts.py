"""Parts behind data, and bodies, serve sizes that they were not compiled for, as onnxruntime answers them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.api.compile_onnx import compile
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.lowering import Lowering
from tests.models.onnx_models import parse

# Sums of at most 150 products of numbers near 1, in two orders.
RTOL, ATOL = 1e-4, 1e-4

WEIGHTS = "float[4,4] w = {1, 2, 0, 1, -1, 0.5, 1, 0, 2, 1, -1, 0.5, 0.25, 1, 2, -1}"

ROWS = f"""g (float[N,4] x) => (float[a,4] rows, float[a,N] pairs)
    <{WEIGHTS}, int64[1] flat = {{-1}}, int64[1] axis = {{1}}, float zero = {{0}}> {{
  sums = ReduceSum<keepdims=0>(x, axis) over = Greater(sums, zero)
  at = NonZero(over) places = Reshape(at, flat)
  picked = Gather(x, places) rows = MatMul(picked, w)
  t = Transpose<perm=[1,0]>(x) pairs = MatMul(rows, t) }}"""
"""Rows that are found, multiplied with all rows: two open sizes."""

STRIDED = """g (float[1,4,N] x) => (float[1,4,b] y, float[1,4,c] z)
    <float[4,4,3] f = {0.5, -0.25, 0.125, 1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.75,
                       0.5, -0.5, 0.25, 1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.75,
                       0.5, -0.25, 0.5, 1, 2, -1, 0.5, 0.75, 3, 1, -2, 0.75,
                       0.5, -0.25, 0.125, -1, 2, -1, 0.5, 0.25, 3, 1, -2, 0.25},
     int64[1] flat = {-1}, int64[2] axes = {0, 1}, float zero = {0}> {
  sums = ReduceSum<keepdims=0>(x, axes) over = Greater(sums, zero)
  at = NonZero(over) places = Reshape(at, flat)
  picked = Gather<axis=2>(x, places) y = Conv<kernel_shape=[3], strides=[2], pads=[1,1]>(picked, f)
  r = Relu(y) z = MaxPool<kernel_shape=[2], strides=[2], ceil_mode=1>(r) }"""
"""Even and odd numbers of columns give equal ones behind a stride, so that each is compiled."""

BOXES = f"""g (float[1,N,4] boxes, float[1,1,N] scores) => (float[a,4] best, float[a,a] overlap)
    <{WEIGHTS}, int64 most = {{100}}, float overlap_limit = {{0.5}}, float least = {{0.2}},
     int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] axis = {{1}}, int64[1] flat = {{-1}},
     int64[2] table = {{-1, 4}}> {{
  found = NonMaxSuppression(boxes, scores, most, overlap_limit, least)
  column = Slice(found, two, three, axis) places = Reshape(column, flat)
  flat_boxes = Reshape(boxes, table) best0 = Gather(flat_boxes, places) best = MatMul(best0, w)
  t = Transpose<perm=[1,0]>(best) p = MatMul(best, t) overlap = Softmax<axis=-1>(p) }}"""
"""A detector: the boxes that are kept, beside each other."""

BRANCHES = f"""g (float[N,4] x) => (float[a,b] y) <{WEIGHTS}, float zero = {{0}}> {{
  total = ReduceSum<keepdims=0>(x) c = Greater(total, zero)
  y = If (c) <
    then_branch = t () => (float[a,b] p) {{ q = MatMul(x, w) p = Concat<axis=0>(q, x) }},
    else_branch = e () => (float[a,b] s) {{ t = Transpose<perm=[1,0]>(x) s = MatMul(t, x) }}> }}"""
"""Branches of different shapes."""

GROWING = f"""g (float[N,4] x, int64 n) => (float[a,4] y, float[b,4] means) <{WEIGHTS}, bool go = {{1}}> {{
  y, means = Loop (n, go, x) <body = b (int64 i, bool c, float[m,4] state)
      => (bool again, float[k,4] next, float[4] mean) {{
    again = Identity(c) t = Transpose<perm=[1,0]>(state) s = MatMul(x, t) p = Softmax<axis=-1>(s)
    a = MatMul(p, state) more = MatMul(a, w) bounded = Tanh(more) next = Concat<axis=0>(state, bounded)
    axis = Constant<value = int64[1] {{0}}>() mean = ReduceSum<keepdims=0>(next, axis) }}> }}"""
"""A state that grows by as many rows as are fed, each time."""

SIZED = f"""g (float[N,4] x, int64 n) => (float[N,4] y, float[b,M] turned) <{WEIGHTS}, bool go = {{1}},
    int64[1] axis = {{1}}> {{
  sizes = Shape(x) count = Size(x) all = Unsqueeze(count, zero) zero = Constant<value = int64[1] {{0}}>()
  y, turned = Loop (n, go, x) <body = b (int64 i, bool c, float[m,4] state)
      => (bool again, float[k,4] next, float[l] flat) {{
    again = Identity(c) p = MatMul(state, w) s = Tanh(p) next = Add(s, x)
    t = Transpose<perm=[1,0]>(next) flat = Reshape(t, all) }}> }}"""
SIZED = SIZED.replace("all = Unsqueeze(count, zero) zero = Constant<value = int64[1] {0}>()",
                      "zero = Constant<value = int64[1] {0}>() all = Unsqueeze(count, zero)")  # fmt: skip
"""A body that reads numbers which follow from the size of what is fed."""

SCANNED = f"""g (float[T,N,4] x, float[N,4] h) => (float[N,4] last, float[T,N,N] sums) <{WEIGHTS}> {{
  last, sums = Scan <num_scan_inputs = 1, body = b (float[N,4] s, float[N,4] v)
      => (float[N,4] t, float[N,N] u) {{
    a = MatMul(s, w) b1 = Add(a, v) t = Tanh(b1) turned = Transpose<perm=[1,0]>(t)
    u = MatMul(v, turned) }}> (h, x) }}"""

NESTED = """g (float[N,4] x) => (float[a,4] y) <int64 n = {3}, bool go = {1}, float zero = {0},
    int64[1] axis = {1}, int64[1] flat = {-1}> {
  y = Loop (n, go, x) <body = b (int64 i, bool c, float[m,4] state) => (bool again, float[k,4] next) {
    again = Identity(c) sums = ReduceSum<keepdims=0>(state, axis) over = Greater(sums, zero)
    at = NonZero(over) places = Reshape(at, flat) picked = Gather(state, places)
    total = ReduceSum<keepdims=0>(picked)
    is_large = Greater(total, zero)
    next = If (is_large) <
      then_branch = t () => (float[p,4] u) { u = Concat<axis=0>(picked, state) },
      else_branch = e () => (float[p,4] v) { v = Concat<axis=0>(state, x) }> }> }"""
"""What is found decides in a loop what the next turn sees."""


RECURRENT = f"""g (float[T,N,4] x, float[N,4] h, float stop) => (float[N,4] last, float[T,N,4] all)
    <{WEIGHTS}, bool go = {{1}}, int64 zero = {{0}}> {{
  sizes = Shape(x) t = Gather(sizes, zero)
  last, end, still, all = Loop (t, go, h, zero, w) <body = b
      (int64 i, bool c, float[N,4] s, int64 at, float[4,4] u)
      => (bool again, float[N,4] next, int64 more, float[4,4] u, float[N,4] kept) <int64 one = {{1}}> {{
    v = Gather(x, at) a = MatMul(v, u) b1 = MatMul(s, u) d = Add(a, b1) next = Tanh(d) kept = Identity(next)
    more = Add(at, one) total = ReduceMax<keepdims=0>(next) again = Less(total, stop) }}> }}"""
"""A cell whose matrix is a state that stays, and whose products with the input may be computed before; the
loop may end before the input does.
"""


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _boxes(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    corners = rng.random((1, n, 2)).astype(np.float32)
    sides = 0.05 + 0.2 * rng.random((1, n, 2)).astype(np.float32)
    scores = rng.random((1, 1, n)).astype(np.float32)
    return {"boxes": np.concatenate([corners, corners + sides], -1), "scores": scores}


def _one_found(x: np.ndarray) -> np.ndarray:
    """The peer refuses a convolution of nothing."""
    x[:, :, 0] = 9
    return x


Feeding = Callable[[int, int, int], dict[str, np.ndarray]]
"""Feeds for a size, a number of turns, and a seed."""

MODELS: dict[str, tuple[str, Feeding]] = {
    "rows": (ROWS, lambda n, k, seed: {"x": floats(seed, n, 4)}),
    "strided": (
        STRIDED,
        lambda n, k, seed: {"x": floats(seed, 1, 4, n) + 9 * (np.arange(n) < 1).astype("f")},
    ),
    "boxes": (BOXES, lambda n, k, seed: _boxes(n, seed)),
    "branches": (BRANCHES, lambda n, k, seed: {"x": floats(seed, n, 4)}),
    "growing": (GROWING, lambda n, k, seed: {"x": floats(seed, n, 4), "n": np.array(k)}),
    "sized": (SIZED, lambda n, k, seed: {"x": floats(seed, n, 4), "n": np.array(k)}),
    "scanned": (SCANNED, lambda n, k, seed: {"x": floats(seed, k, n, 4), "h": floats(seed + 1, n, 4)}),
    "recurrent": (
        RECURRENT,
        lambda n, k, seed: {
            "x": floats(seed, 3 * k, n, 4),
            "h": floats(seed + 1, n, 4),
            "stop": np.array(0.99 if seed % 2 else 2, np.float32),
        },
    ),
    "nested": (NESTED, lambda n, k, seed: {"x": floats(seed, n, 4)}),
}


class Pair:
    """A model in both runtimes."""

    def __init__(self, name: str) -> None:
        text, self.feeds = MODELS[name]
        model = parse(text)
        self.session: OnnxSession = compile(model, threads=2, images=4)
        self._peer = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )

    def check(self, n: int, k: int, seed: int) -> None:
        feeds = self.feeds(n, k, seed)
        wanted: list[Any] = self._peer.run(None, feeds)
        for own, other in zip(self.session.run(feeds).values(), wanted, strict=True):
            assert (own.dtype, own.shape) == (other.dtype, other.shape), (n, k, seed)
            np.testing.assert_allclose(own, other, RTOL, ATOL, err_msg=str((n, k, seed)))


@pytest.fixture(scope="module")
def pairs() -> Iterator[Callable[[str], Pair]]:
    """One session a model, so that sizes of all examples meet the same programs."""
    made: dict[str, Pair] = {}

    def pair(name: str) -> Pair:
        if name not in made:
            made[name] = Pair(name)
        return made[name]

    yield pair
    for one in made.values():
        one.session.close()


@pytest.mark.filterwarnings("ignore:.* is compiled again")
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 150), k=st.integers(1, 5), seed=st.integers(0, 1000))
def test_any_sizes_answer_as_onnxruntime_does(
    pairs: Callable[[str], Pair], name: str, n: int, k: int, seed: int
) -> None:
    """In any order: an executable bound to one size must leave nothing behind for the next."""
    pairs(name).check(n, k, seed)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "strided"])
def test_a_new_size_compiles_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than running what is compiled; detectors find another number each time."""
    n_lowered, lower = 0, Lowering.lower

    def counted(self: Lowering, *given: Any) -> Any:
        nonlocal n_lowered
        n_lowered += 1
        return lower(self, *given)

    monkeypatch.setattr(Lowering, "lower", counted)
    pair = Pair(name)
    for i, n in enumerate((30, 41, 77, 24, 51, 64)):
        pair.check(n, 3, i)
    before = n_lowered
    for i, n in enumerate((33, 48, 60, 71, 27, 38)):
        pair.check(n, 3, 10 + i)
    assert n_lowered == before


@pytest.mark.filterwarnings("ignore:.* is compiled again")
@pytest.mark.parametrize("name", ["rows", "growing", "nested"])
def test_threads_with_different_sizes_take_turns(name: str) -> None:
    """One table serves all sizes: a run must see its own."""
    pair = Pair(name)
    sizes = [(2 + 7 * i % 40, 1 + i % 3, i) for i in range(24)]
    with ThreadPoolExecutor(4) as threads:
        for checked in [threads.submit(pair.check, *one) for one in sizes]:
            checked.result()
