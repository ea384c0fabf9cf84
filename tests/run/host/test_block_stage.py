"""Models that data divide into parts give what onnxruntime gives."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pliant import compile
from pliant.errors import GraphError, InputError
from pliant.run.array_sessions.onnx_session import OnnxSession
from tests.models.onnx_models import parse

# Where y comes from matrix products of 5 numbers, 1e-5 of their size covers any order of additions.
RTOL, ATOL = 1e-5, 1e-5


def same(model: Any, *feeds: Mapping[str, np.ndarray]) -> OnnxSession:
    """The session, after its answers to all feeds, in turn, were those of onnxruntime."""
    session = compile(model, threads=1)
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for one in feeds:
        agree(session.run(one), right.run(None, dict(one)))
    return session


def agree(results: Mapping[str, np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for y, right in zip(results.values(), expected, strict=True):
        assert (y.dtype, y.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(y, right, RTOL, ATOL)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


FOUND = """g (float[N,5] x) => (float[a,5] rows, int64[2,b] at, float[N,5] all) {
  all = Softmax(x)
  limit = Constant <value = float {0.3}> ()
  over = Greater(all, limit)
  at = NonZero(over)
  turned = Transpose <perm = [1, 0]> (at)
  picked = GatherND(all, turned)
  column = Constant <value = int64[2] {-1, 1}> ()
  wide = Reshape(picked, column)
  ones = Constant <value = float[1,5] {1, 2, 3, 4, 5}> ()
  rows = MatMul(wide, ones) }"""


def test_what_reads_found_places_is_bound_when_they_are_found() -> None:
    """A detector: a network, the places that it finds, and a network on what is there, also if nothing is."""
    nothing = np.zeros((3, 5), np.float32)
    session = same(parse(FOUND), *({"x": floats(n, 5, seed=n)} for n in (4, 7, 4, 30)), {"x": nothing})
    assert session.run({"x": nothing})["rows"].shape == (0, 5)


def test_the_parts_of_a_model_stand_in_its_plan_and_profile() -> None:
    """Users see which steps run on the host, and what they take."""
    session = same(parse(FOUND), {"x": floats(4, 5)})
    works = [str(step.work) for step in session.plan.images[0].program.steps]
    assert [work.split()[0] for work in works] == ["graph", "NonZero:at", "rest"]
    assert "NonZero:at" in str(session.plan)
    profile = session.profile({"x": floats(4, 5)}, runs=3)
    assert {"NonZero", "FusedMatMul"} <= {step.op for step in profile.steps}
    assert session.memory.parts[1].measured_bytes >= 0


def test_equal_shapes_are_bound_once() -> None:
    """A second answer of the same shapes must not compile."""
    session = same(parse(FOUND), {"x": floats(4, 5)})
    images = len(session.plan.images)
    session.run({"x": floats(4, 5)})
    assert len(session.plan.images) == images == 2


def test_outputs_are_written_into_the_arrays_given() -> None:
    """Those of executables and those of host steps alike."""
    session = compile(parse(FOUND), threads=1)
    right = session.run({"x": floats(4, 5)})
    out = {y: np.empty_like(a) for y, a in right.items()}
    results = session.run({"x": floats(4, 5)}, out)
    assert all(results[y] is out[y] for y in out)
    agree(out, list(right.values()))


def test_threads_share_a_session_in_parts() -> None:
    """Its programs keep the tensors of the run under way: runs take turns."""
    model = parse(FOUND)
    session = compile(model, threads=2)
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = [{"x": floats(2 + i % 5, 5, seed=i)} for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for one, results in zip(feeds, pool.map(session.run, feeds), strict=True):
            agree(results, right.run(None, one))


def test_several_feeds_are_answered_one_after_another() -> None:
    """Rows of a batch are not told apart by what is found in them."""
    session = compile(parse(FOUND), threads=2)
    feeds = [{"x": floats(3, 5, seed=i)} for i in range(4)]
    for one, results in zip(feeds, session.run_many(feeds), strict=True):
        agree(results, list(session.run(one).values()))


BRANCH = """g (float[N,5] x) => (float[a,b] y, bool c) {
  total = ReduceSum <keepdims = 0> (x)
  zero = Constant <value = float {0}> ()
  c = Greater(total, zero)
  scaled = Mul(x, total)
  y = If (c) <
    then_branch = t () => (float[a,b] p) {
      big = ReduceMax <keepdims = 0> (scaled)
      one = Constant <value = float {1}> ()
      inner = Greater(big, one)
      p = If (inner) <
        then_branch = tt () => (float[a,b] q) { q = Sub(scaled, total) },
        else_branch = te () => (float[a,b] r) { r = Transpose(scaled) }> },
    else_branch = e () => (float[a,b] s) { s = Identity(x) }> }"""


def test_branches_see_what_is_around_them_and_nest() -> None:
    """A branch may give another shape than the other, or a tensor from outside as it is."""
    feeds = [np.ones((3, 5)), -np.ones((3, 5)), np.full((3, 5), 0.01), np.full((2, 5), 0.01)]
    same(parse(BRANCH), *({"x": x.astype(np.float32)} for x in feeds))


LOOP = """g (float[N,5] x, int64 most) => (float[N,5] last, float[a,N,5] all, int64[b] counts) {
  go = Constant <value = bool {1}> ()
  limit = Constant <value = float {40}> ()
  last, all, counts = Loop (most, go, x) <body = b (int64 i, bool c, float[N,5] state)
    => (bool again, float[N,5] next, float[N,5] kept, int64 count) {
      f = Cast <to = 1> (i)
      grown = Add(state, x)
      next = Add(grown, f)
      total = ReduceSum <keepdims = 0> (next)
      again = Less(total, limit)
      kept = Identity(next)
      count = Identity(i) }> }"""


@pytest.mark.parametrize("most", [0, 1, 100])
def test_loops_end_by_count_or_condition_and_may_never_begin(most: int) -> None:
    """What a loop of no iterations gathers has the sizes that its body declares."""
    same(parse(LOOP), {"x": np.full((2, 5), 0.5, np.float32), "most": np.array(most)})


GROWING = """g (float[1,5] x, int64 n) => (float[a,5] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (n, go, x) <body = b (int64 i, bool c, float[m,5] state) => (bool again, float[k,5] next) {
      again = Identity(c) doubled = Mul(x, x) next = Concat <axis = 0> (state, doubled) }> }"""


def test_a_state_may_grow() -> None:
    """A decoder without a cache of fixed length; more shapes than are kept must only cost time."""
    session = same(parse(GROWING), *({"x": floats(1, 5), "n": np.array(n)} for n in (12, 3)))
    assert len(session.plan.images) <= 1 + 8


SCAN = """g (float[T,5] x, float[5] h) => (float[5] last, float[T,5] sums) {
  last, sums = Scan <num_scan_inputs = 1, body = b (float[5] s, float[5] v) => (float[5] t, float[5] u) {
    t = Add(s, v) u = Mul(t, h) }> (h, x) }"""


@pytest.mark.parametrize("n", [1, 6])
def test_scans_walk_the_rows_of_a_tensor(n: int) -> None:
    """The body reads a tensor from around it as well."""
    same(parse(SCAN), {"x": floats(n, 5), "h": floats(5, seed=1)})


def test_a_scan_of_nothing_gives_its_states() -> None:
    """onnxruntime refuses it; ONNX's reference gives the first states and no rows."""
    results = compile(parse(SCAN), threads=1).run({"x": floats(0, 5), "h": floats(5)})
    np.testing.assert_array_equal(results["last"], floats(5))
    assert results["sums"].shape == (0, 5)


SEQUENCE = """g (float[N,5] x, int64 k) => (float[a,5] y, int64 n) {
  parts = SplitToSequence <axis = 0> (x)
  one = SequenceAt(parts, k)
  twice = Add(one, one)
  more = SequenceInsert(parts, twice)
  less = SequenceErase(more, k)
  n = SequenceLength(less)
  y = ConcatFromSequence <axis = 0> (less) }"""


def test_sequences_pass_between_steps() -> None:
    """Only their tensors are seen by kernels."""
    same(parse(SEQUENCE), *({"x": floats(4, 5), "k": np.array(k)} for k in (0, 2, -1)))


def test_what_does_not_fit_in_a_body_names_the_node() -> None:
    """The message of an error deep in a loop leads to it."""
    session = compile(parse(SEQUENCE), threads=1)
    with pytest.raises(InputError, match=r"\(SequenceAt\).*position 9 is outside a sequence of 4"):
        session.run({"x": floats(4, 5), "k": np.array(9)})
    agree(
        session.run({"x": floats(4, 5), "k": np.array(1)}),
        list(session.run({"x": floats(4, 5), "k": np.array(1)}).values()),
    )


@pytest.mark.parametrize("options", [{"buckets": {"N": (8,)}}, {"weights": 4}, {"memory": "100MB"}])
def test_what_a_model_in_parts_cannot_have_is_refused(options: dict[str, Any]) -> None:
    """A padded row would be found, too; and what all parts take is not known before they run."""
    with pytest.raises(InputError, match=r"cannot be given.*NonZero \(at 'at'\)"):
        compile(parse(FOUND), threads=1, **options).run({"x": floats(4, 5)})


def test_c_code_of_a_model_in_parts_is_refused() -> None:
    """It holds one executable."""
    with pytest.raises(GraphError, match=r"not a single graph.*NonZero"):
        compile(parse(FOUND), threads=1).image({"x": floats(4, 5)})
