"""Several feeds in one run: the answers are those of each feed alone, or each runs alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.run.batches.feed_batcher import COUNTS
from tests.models.onnx_models import parse
from tests.run.batches.test_buckets import MASKED

OVER_ROWS = parse("g (float[N,4] x) => (float[N,4] y) { y = Softmax <axis = 0> (x) }")
OVER_ROWS_KEPT = parse(
    "g (float[N,4] x) => (float[N,4] y) { m = ReduceMean <axes = [0], keepdims = 1> (x) "
    "d = Sub(x, x) y = Add(d, m) }"
)
SUMMED = parse("g (float[N,4] x) => (float[4] y) { a = Constant <value_ints = [0]> () "
               "y = ReduceSum <keepdims = 0> (x, a) }")  # fmt: skip
_WEIGHT = ", ".join(map(str, np.random.default_rng(0).standard_normal(64).round(3).tolist()))
_HEADS = "two = Constant <value_ints = [0, 0, 2, 4]> () flat = Constant <value_ints = [0, 0, 8]> () "
ENCODER = parse(
    "g (float[B,S,8] x, float[B,S] mask) => (float[B,S,8] y) { one = Constant <value_float = 1.0> () "
    f"big = Constant <value_float = -1e9> () w = Constant <value = float[8,8] {{{_WEIGHT}}}> () "
    f"{_HEADS} axes = Constant <value_ints = [1, 2]> () hidden = Sub(one, mask) far = Mul(hidden, big) "
    "u = Unsqueeze(far, axes) q = MatMul(x, w) h = Reshape(q, two) t = Transpose <perm = [0, 2, 1, 3]> (h) "
    "k = Transpose <perm = [0, 2, 3, 1]> (h) s = MatMul(t, k) a = Add(s, u) p = Softmax(a) m = MatMul(p, t) "
    "o = Transpose <perm = [0, 2, 1, 3]> (m) f = Reshape(o, flat) y = MatMul(f, w) }"
)
"""One layer, as exporters write it: the padding of its texts can be left out."""
MEAN = parse("g (float[B,S] x) => (float[B,1] m) { m = ReduceMean <axes = [1]> (x) }")
FIXED = parse("g (float[2,4] x) => (float[2,4] y) { y = Neg(x) }")


def _feeds(length: int, seed: int, rows: int = 1) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((rows, length, 8)).astype(np.float32)
    return {"x": x, "mask": np.ones((rows, length), np.float32)}


@pytest.fixture(scope="module")
def exact() -> Any:
    """Every size as it is fed."""
    return compile(MASKED, threads=2, images=64)


@pytest.fixture(scope="module")
def bucketed() -> Any:
    """Lengths padded to one of three."""
    return compile(MASKED, threads=2, buckets={"S": (4, 9, 20)})


@pytest.mark.parametrize("kind", ["exact", "bucketed"])
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), max_size=20), seed=st.integers(0, 9))
def test_feeds_together_answer_as_each_alone(
    exact: Any, bucketed: Any, kind: str, lengths: list[int], seed: int
) -> None:
    """Lengths in any order, many of them equal or none; sums of at most 20 numbers in another order."""
    session = {"exact": exact, "bucketed": bucketed}[kind]
    feeds = [_feeds(n, seed + i) for i, n in enumerate(lengths)]
    found = session.run_many(feeds)
    assert len(found) == len(feeds)
    for one, answers in zip(feeds, found, strict=True):
        for y, wanted in exact.run(one).items():
            assert answers[y].shape == wanted.shape
            np.testing.assert_allclose(answers[y], wanted, rtol=1e-5, atol=1e-5)


def test_padding_of_an_encoder_is_left_out() -> None:
    """Every text is what it is alone, batches that are compared and those that need not be; no image is for
    some lengths alone."""
    session = compile(ENCODER, threads=2, buckets={"S": (4, 20)})
    alone = compile(ENCODER, threads=1, images=32)
    for seed in range(3):
        lengths = np.random.default_rng(seed).integers(1, 21, 32).tolist()
        feeds = [_feeds(n, seed + n) for n in lengths]
        for one, answers in zip(feeds, session.run_many(feeds), strict=True):
            np.testing.assert_allclose(answers["y"], alone.run(one)["y"], rtol=1e-4, atol=1e-4)
    packed = [image for image in session.plan.images if "texts|rows" in image.inputs]
    assert {image.inputs["x"].shape[1] for image in packed} == {4, 20}
    assert len(packed) <= len(COUNTS) * 2


def test_feeds_of_one_bucket_run_together() -> None:
    """Eight texts in one run, padded or as long as the bucket: the image is that of the batch."""
    session = compile(MASKED, threads=1, buckets={"S": (4, 20)})
    session.run_many([_feeds(n, n) for n in range(13, 21)])
    shapes = [image.inputs["x"].shape for image in session.plan.images]
    assert shapes == [(COUNTS[0], 20, 8)]


def test_batches_leave_every_thread_its_part() -> None:
    """Eight texts in one batch would keep one of two threads idle: they run as two of four, in one image."""
    session = compile(MASKED, threads=2, buckets={"S": (4, 20)})
    session.run_many([_feeds(n, n) for n in range(13, 21)])
    assert [image.inputs["x"].shape for image in session.plan.images] == [(4, 20, 8)]


def test_answers_are_the_callers_own(exact: Any) -> None:
    """What a batch is cut from must not stay alive with each answer, nor change with the next."""
    first = exact.run_many([_feeds(5, 0), _feeds(5, 1)])
    kept = [{y: a.copy() for y, a in one.items()} for one in first]
    exact.run_many([_feeds(5, 2), _feeds(5, 3)])
    for one, before in zip(first, kept, strict=True):
        assert all(one[y].base is None and np.array_equal(one[y], before[y]) for y in one)


@pytest.mark.parametrize("model", [OVER_ROWS, SUMMED], ids=["mixes rows", "keeps no rows"])
def test_a_model_that_does_not_answer_row_by_row_is_fed_one_by_one(model: Any) -> None:
    """A first dimension need not be that of a batch: tokens often stand there."""
    session = compile(model, threads=1)
    feeds = [{"x": np.random.default_rng(i).standard_normal((1, 4)).astype(np.float32)} for i in range(5)]
    for _ in range(2):
        found = session.run_many(feeds)
        for one, answers in zip(feeds, found, strict=True):
            np.testing.assert_allclose(answers["y"], session.run(one)["y"], rtol=1e-6)


def test_equal_feeds_prove_nothing() -> None:
    """Rows that are the same may hide that a model mixes them: the next batch is compared as well."""
    session = compile(OVER_ROWS_KEPT, threads=1)
    same, other = {"x": np.ones((1, 4), np.float32)}, {"x": np.full((1, 4), 3.0, np.float32)}
    assert [one["y"].tolist() for one in session.run_many([same, same])] == [[[1.0] * 4]] * 2
    assert [one["y"].tolist() for one in session.run_many([same, other])] == [[[1.0] * 4], [[3.0] * 4]]


def test_a_model_that_notices_padding_is_refused() -> None:
    """As `run` refuses it, with the dimension's and the output's name."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8)})
    with pytest.raises(InputError, match=r"the answer changes when 'S' from 3 to 4 is padded"):
        session.run_many([{"x": np.ones((1, 3), np.float32)}, {"x": np.full((1, 2), 2.0, np.float32)}])


def test_feeds_of_several_rows_and_fixed_shapes_run_alone(exact: Any) -> None:
    """A caller's own batch stays whole; a model without an open dimension has no room for a second caller."""
    feeds = [_feeds(5, 0, rows=3), _feeds(5, 1), _feeds(5, 2)]
    for one, answers in zip(feeds, exact.run_many(feeds), strict=True):
        np.testing.assert_allclose(answers["y"], exact.run(one)["y"], rtol=1e-5, atol=1e-5)
    fixed = compile(FIXED, threads=1)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert [one["y"].tolist() for one in fixed.run_many([{"x": x}, {"x": 2 * x}])] == [
        (-x).tolist(),
        (-2 * x).tolist(),
    ]


def test_under_a_bound_of_memory_feeds_run_alone() -> None:
    """A batch of eight takes eight times the activations, which the bound was not asked for."""
    session = compile(MASKED, threads=1, memory="1MB", images=4)
    feeds = [_feeds(5, i) for i in range(4)]
    for one, answers in zip(feeds, session.run_many(feeds), strict=True):
        np.testing.assert_allclose(answers["y"], session.run(one)["y"], rtol=1e-6)
    assert [image.inputs["x"].shape for image in session.plan.images] == [(1, 5, 8)]


def test_no_feeds_have_no_answers(exact: Any) -> None:
    """As a loop over none."""
    assert exact.run_many([]) == []


def test_feeds_that_do_not_fit_are_named_before_any_runs(bucketed: Any) -> None:
    """One caller's mistake is told with its place in the list, whether it is the shape or the size."""
    with pytest.raises(InputError, match=r"feeds 1 of the list: input 'x' is float32\[3\], but must be"):
        bucketed.run_many([_feeds(5, 0), {"x": np.ones(3, np.float32), "mask": np.ones((1, 3), np.float32)}])
    with pytest.raises(InputError, match="feeds 0 of the list: dimension 'S' is 21"):
        bucketed.run_many([_feeds(21, 0)])
