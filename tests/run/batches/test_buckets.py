"""Feeds padded to a bucket: answers as without, or a refusal that names dimension and output."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.run.batches.buckets import Buckets
from tests.models.onnx_models import parse

MASKED = parse(
    "g (float[B,S,8] x, float[B,S] mask) => (float[B,S,8] y, float[B,8] z, float[B,S,S] p) { "
    "one = Constant <value_float = 1.0> () big = Constant <value_float = 1e9> () "
    "first = Constant <value_ints = [1]> () last = Constant <value_ints = [2]> () "
    "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) hidden = Sub(one, mask) far = Mul(hidden, big) "
    "u = Unsqueeze(far, first) a = Sub(s, u) p = Softmax(a) y = MatMul(p, x) "
    "k = Unsqueeze(mask, last) q = Mul(y, k) z = ReduceSum <keepdims = 0> (q, first) }"
)
BUCKETS = {"S": (4, 9, 20), "B": (2, 5)}
MEAN = parse(
    "g (float[B,S] x) => (float[B,S] y, float[B,1] m) { m = ReduceMean <axes = [1]> (x) y = Neg(x) }"
)
MEAN_WITHOUT_AXES = parse("g (float[B,S] x) => (float[1,1] m) { m = ReduceMean(x) }")


def _feeds(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The last positions of every other row are hidden, as in a batch of texts."""
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.float32)
    mask[::2, (length + 1) // 2 + 1 :] = 0
    return {"x": rng.standard_normal((batch, length, 8)).astype(np.float32), "mask": mask}


@pytest.fixture(scope="module")
def bucketed() -> Any:
    return compile(MASKED, threads=2, buckets=BUCKETS)


@pytest.fixture(scope="module")
def exact() -> Any:
    return compile(MASKED, threads=2, images=64)


@pytest.mark.parametrize("sizes", [np.array([4, 9]), [np.int32(4), np.int64(9)]])
def test_integers_of_numpy_are_sizes(sizes: Any) -> None:
    """Lengths are often computed from arrays: they become plain numbers, as in the plan and in messages."""
    padding = Buckets({"S": sizes})
    assert [type(n) for n in padding.sizes["S"]] == [int, int]
    assert padding.sizes == {"S": (4, 9)}
    session = compile(MASKED, threads=1, dims={"B": np.int64(2)}, buckets={"S": sizes})  # type: ignore[dict-item]
    assert session.inputs[0].dims == (2, "S", 8)
    assert type(session.inputs[0].dims[0]) is int
    assert session.run(_feeds(2, 3))["y"].shape == (2, 3, 8)
    with pytest.raises(InputError, match="give whole numbers above 0"):
        Buckets({"S": [np.int64(0)]})


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 5), length=st.integers(1, 20), seed=st.integers(0, 9))
def test_a_padded_answer_is_the_unpadded_one(
    bucketed: Any, exact: Any, batch: int, length: int, seed: int
) -> None:
    """Whatever is fed, in whatever order buckets are met; tolerance: orders of sums of at most 20 numbers."""
    feeds = _feeds(batch, length, seed)
    wanted, found = exact.run(feeds), bucketed.run(feeds)
    for y, a in wanted.items():
        assert found[y].shape == a.shape
        np.testing.assert_allclose(found[y], a, rtol=1e-5, atol=1e-5)
    assert len(bucketed.plan.images) <= 6


def test_answers_are_the_callers_own(bucketed: Any) -> None:
    """What the session runs on stays its own: an answer must not change with the next run."""
    first = bucketed.run(_feeds(1, 3))
    kept = {y: a.copy() for y, a in first.items()}
    bucketed.run(_feeds(1, 3, seed=1))
    assert all(np.array_equal(first[y], kept[y]) for y in first)
    assert all(a.flags.c_contiguous and a.base is None for a in first.values())


def test_a_dimension_without_buckets_may_change(exact: Any) -> None:
    """Lengths are exact where only batches are padded: arrays of a longer run must not be written to."""
    session = compile(MASKED, threads=1, buckets={"B": (4,)})
    for length in (7, 9, 7):
        feeds = _feeds(3, length)
        for y, a in exact.run(feeds).items():
            np.testing.assert_allclose(session.run(feeds)[y], a, rtol=1e-5, atol=1e-5)


def test_answers_go_into_given_arrays_without_memory(bucketed: Any) -> None:
    """Padded arrays are kept from run to run, so that a run into given arrays allocates none."""
    feeds = {x: np.tile(a, (1, 1, 1)[: a.ndim]) for x, a in _feeds(4, 15).items()}
    wanted = bucketed.run(feeds)
    out = {y: np.zeros_like(a) for y, a in wanted.items()}
    bucketed.run(feeds, out)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    results = bucketed.run(feeds, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(results[y] is out[y] and np.array_equal(out[y], wanted[y]) for y in wanted)
    assert peak - before < 20_000
    with pytest.raises(InputError, match=r"'y' is float32\[5, 20, 8\], but must be float32\[4,15,8\]"):
        bucketed.run(feeds, {"y": np.zeros((5, 20, 8), np.float32)})


def test_a_size_of_a_bucket_is_run_as_it_is() -> None:
    """Nothing is padded, so nothing is compared; onnxruntime's form works too."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8)})
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    y, m = session.run(None, {"x": x})
    assert np.array_equal(y, -x)
    assert m.item() == 3.5
    assert len(session.plan.images) == 1


def test_a_model_that_notices_padding_is_refused() -> None:
    """A mean over a padded axis divides by too much: the dimension and the output are named."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8)})
    x = np.ones((1, 3), np.float32)
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"the answer changes when 'S' from 3 to 4 is padded: outputs \['m'\] differ"
        ):
            session.run({"x": x})


def test_a_warm_up_on_zeros_proves_nothing() -> None:
    """The mean of zeros is that of more zeros: the comparison is made again on something to see."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8)})
    assert session.run({"x": np.zeros((1, 3), np.float32)})["m"].item() == 0
    with pytest.raises(InputError, match=r"outputs \['m'\] differ by up to 0\.25 of their largest number"):
        session.run({"x": np.ones((1, 3), np.float32)})


def test_a_closed_session_lets_go_of_its_arrays() -> None:
    """Those that feeds are padded into, too."""
    session = compile(MASKED, threads=1, buckets=BUCKETS)
    session.run(_feeds(1, 3))
    session.close()
    assert not session._padding._staged  # noqa: SLF001 - nothing public tells of padded feeds
    with pytest.raises(InputError, match="closed"):
        session.run(_feeds(1, 3))


def test_of_two_dimensions_only_the_guilty_one_is_named() -> None:
    """Rows do not know of each other; positions do."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8), "B": (4,)})
    with pytest.raises(InputError, match=r"when 'S' from 3 to 4 is padded: outputs \['m'\]"):
        session.run({"x": np.ones((2, 3), np.float32)})
    both = compile(MEAN_WITHOUT_AXES, threads=1, buckets={"S": (4, 8), "B": (4,)})
    with pytest.raises(InputError, match="when 'B' from 2 to 4 or 'S' from 3 to 4 is padded"):
        both.run({"x": np.ones((2, 3), np.float32)})


def test_what_an_input_is_padded_with_may_be_said() -> None:
    """A minimum takes zeros for data, and infinity for nothing."""
    model = parse("g (float[S] x) => (float[1] m) { m = ReduceMin(x) }")
    x = np.float32([3, 2, 5])
    with pytest.raises(InputError, match="'S'"):
        compile(model, threads=1, buckets={"S": (8,)}).run({"x": x})
    session = compile(model, threads=1, buckets={"S": (8,)}, pads={"x": np.inf})
    assert session.run({"x": x})["m"].tolist() == [2]


def test_beyond_the_largest_bucket_is_refused() -> None:
    """With the size, the input and the limit."""
    session = compile(MEAN, threads=1, buckets={"S": (4, 8)})
    with pytest.raises(InputError, match="dimension 'S' is 9 in input 'x', but its largest bucket is 8"):
        session.run({"x": np.ones((1, 9), np.float32)})


def test_an_axis_that_is_no_dimension_itself_is_refused() -> None:
    """Twice the length: what of it to keep, nobody says."""
    model = parse("g (float[S] x) => (float[T] y) { y = Concat <axis = 0> (x, x) }")
    with pytest.raises(InputError, match="output 'y' cannot be cut back: padding made an axis 8 instead"):
        compile(model, threads=1, buckets={"S": (4,)}).run({"x": np.ones(3, np.float32)})


def test_unnamed_axes_are_told_apart_by_names_only() -> None:
    """Two dimensions padded alike: an output that names none of them could be either."""
    model = parse("g (float[A,B] x) => (float[P,Q] y) { y = Neg(x) }")
    session = compile(model, threads=1, buckets={"A": (4,), "B": (4,)})
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(session.run({"x": x})["y"], -x)
    with pytest.raises(InputError, match="name its dimensions in the model"):
        compile(model, threads=1, buckets={"A": (4,), "B": (4,)}).run({"x": x[:, :2]})


def test_a_dimension_without_a_name_has_one() -> None:
    """As with `dims`: the input's name and the axis."""
    model = parse("g (float[?,3] x) => (float[?,3] y) { y = Neg(x) }")
    x = np.ones((3, 3), np.float32)
    assert np.array_equal(compile(model, threads=1, buckets={"x.0": (4,)}).run({"x": x})["y"], -x)


def test_the_profile_is_of_the_bucket(bucketed: Any) -> None:
    """What runs is what is measured."""
    labels = [step.label for step in bucketed.profile(_feeds(1, 3), 1).steps]
    assert labels == [step.label for step in bucketed.profile(_feeds(2, 4), 1).steps]
    assert bucketed.image(_feeds(1, 3)).inputs["x"].shape == (2, 4, 8)


def test_a_traced_answer_is_cut_like_any_other(bucketed: Any) -> None:
    """The spans are those of the run of the bucket, the answer that of what was fed."""
    feeds = _feeds(1, 3)
    reply, wanted = bucketed.traced(bucketed.request(feeds)), bucketed.run(feeds)
    assert {y: a.tobytes() for y, a in reply.outputs.items()} == {y: a.tobytes() for y, a in wanted.items()}
    assert len(reply.details.calls) == len(reply.details.steps) > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"buckets": {"T": (4,)}}, r"no open dimension 'T'; it has \['B', 'S'\]"),
        ({"buckets": {"S": (4,)}, "dims": {"S": 4}}, "no open dimension 'S'"),
        ({"buckets": {"S": ()}}, "the buckets of 'S'"),
        ({"buckets": {"S": (0, 4)}}, "the buckets of 'S'"),
        ({"buckets": {"S": (True,)}}, "the buckets of 'S'"),
        ({"buckets": {"S": 16}}, r"the buckets of 'S' are 16; give several, such as \(32, 64\)"),
        ({"buckets": "S=16"}, "buckets is 'S=16'; give a mapping"),
        ({"buckets": {"S": (4,)}, "pads": "x"}, "pads is 'x'; give a mapping"),
        ({"buckets": {"S": (4,)}, "pads": {"x": "a"}}, "the pad of 'x' is 'a'; give a number"),
        ({"dims": "B=1"}, "dims is 'B=1'; give a mapping"),
        ({"images": "x"}, "images is 'x'; give a whole number"),
        ({"images": 1.5}, "images is 1.5; give a whole number"),
        ({"without": "fuse"}, "without is 'fuse'; give names of passes"),
        ({"buckets": {"S": (4,)}, "pads": {"q": 1}}, r"no input 'q' to pad; it has \['x'\]"),
    ],
)
def test_options_that_make_no_sense_are_errors(options: dict[str, Any], said: str) -> None:
    """Misspelt options must not be dropped silently."""
    with pytest.raises(InputError, match=said):
        compile(MEAN, threads=1, **options)
