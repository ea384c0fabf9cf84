"""Sessions on ONNX models: any shape that is fed, wrong feeds named, weights held once, threads in turn."""

import threading
import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import pliant
from pliant.api.compile_onnx import compile
from pliant.api.resolve import resolve
from pliant.errors import GraphError, InputError, ModelError
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.graph_runner import GraphRunner
from tests.models.onnx_models import linear, parse

SUM = parse("g (float[N,3] x, float[N,3] w) => (float[N,3] y) { y = Add(x, w) }")


WIDE = parse(
    "g (float[N,N] x) => (float[N,N] y) { a = Transpose(x) b = Softmax(a) c = Transpose(b) y = Sub(c, x) }"
)
AS_WRITTEN = ("transposes", "maps", "pushes")


@pytest.fixture
def wide() -> OnnxSession:
    """Its intermediate tensors take N * N floats each, and no pass removes them."""
    return compile(WIDE, threads=2, without=AS_WRITTEN)


def _square(n: int) -> np.ndarray:
    return np.eye(n, dtype=np.float32)


def _wide_answer(n: int) -> np.ndarray:
    e = np.exp(_square(n).T)
    return (e / e.sum(axis=-1, keepdims=True)).T - _square(n)


def _activations(session: OnnxSession) -> int:
    """Bytes of the arena that are in memory."""
    (found,) = (part.measured_bytes for part in session.memory.parts if part.name == "activations")
    return found


def _rows(n: int) -> np.ndarray:
    return np.arange(3 * n, dtype=np.float32).reshape(n, 3)


def test_the_package_is_also_the_verb() -> None:
    """`pliant.compile("model.onnx")` is what users write, whatever was imported before."""
    session = pliant.compile(SUM, threads=1)
    assert np.array_equal(session.run({"x": _rows(2), "w": _rows(2)})["y"], 2 * _rows(2))


def test_each_shape_that_is_fed_is_answered() -> None:
    """Batches differ in size; the user binds nothing by hand."""
    session = compile(SUM, threads=1)
    for n in (1, 4, 0, 2, 4):
        assert np.array_equal(session.run({"x": _rows(n), "w": _rows(n)})["y"], 2 * _rows(n))


def test_at_most_so_many_images_are_kept() -> None:
    """Each shape costs an arena; the one not used for longest goes."""
    session = compile(SUM, threads=1, images=2)
    for n in (1, 2, 3):
        session.run({"x": _rows(n), "w": _rows(n)})
    assert len(session.plan.images) == 2


@pytest.mark.parametrize(
    ("memory", "limits"),
    [
        (None, r"\. In Python, pliant.compile also has `images=` to keep more, and `buck"),
        (
            100_000,
            r", within 100000 bytes of memory\. Give more memory by `--memory`, in Python `mem",
        ),
    ],
)
def test_compiling_again_what_was_evicted_warns_once(memory: int | None, limits: str) -> None:
    """A service that sees more shapes than it keeps compiles at every request; nothing else tells why."""
    session = compile(SUM, threads=1, images=1, memory=memory)
    for n in (1, 0):  # larger sizes are bound again, and not compiled
        session.run({"x": _rows(n), "w": _rows(n)})
    with pytest.warns(UserWarning, match=r"only the last 1 are kept" + limits):
        session.run({"x": _rows(1), "w": _rows(1)})
    for n in (0, 1, 0):  # warnings are errors here
        assert np.array_equal(session.run({"x": _rows(n), "w": _rows(n)})["y"], 2 * _rows(n))


def test_unnamed_dimensions_differ() -> None:
    """A picture of 4 x 5 must not be refused because the exporter called height and width `?`."""
    ports = (helper.make_tensor_value_info(t, 1, ["?", 3, "?", "?"]) for t in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", *([port] for port in ports))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    assert np.array_equal(compile(model, threads=1)(x).output, -x)
    fixed = compile(model, threads=1, dims={"x.2": 4})
    assert str(fixed.inputs[0]) == "float32[?,3,4,?]"


def test_a_session_of_one_input_is_called() -> None:
    """`session(x)` gives the reply of every session; several inputs or outputs have names."""
    x = _rows(2)
    reply = compile(parse("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }"), threads=1)(x)
    assert np.array_equal(reply.output, -x)
    assert (list(reply.outputs), reply.endpoint, reply.length) == (["y"], "model", 2)
    assert reply.seconds > 0.0
    two = parse("g (float[N,3] x) => (float[N,3] y, float[N,3] z) { y = Neg(x) z = Abs(y) }")
    reply = compile(two, threads=1)(x.tolist())
    assert np.array_equal(reply.outputs["y"], -x)
    assert np.array_equal(reply.outputs["z"], x)
    with pytest.raises(InputError, match=r"2 outputs, \['y', 'z'\]: see `outputs`"):
        _ = reply.output
    with pytest.raises(InputError, match=r"2 inputs, \['x', 'w'\]: call run"):
        compile(SUM, threads=1)(x)


def test_the_plan_holds_what_each_shape_runs() -> None:
    """A user sees memory and kernel calls of every shape before a service is sized by them."""
    model, _ = linear(128, 64)
    session = compile(model, threads=1)
    assert "no shapes are compiled yet" in str(session.plan)
    for n in (3, 64):
        session.run({"x": np.ones((n, 128), np.float32)})
    profile = session.profile({"x": np.ones((64, 128), np.float32)}, 3)
    plan = session.plan
    assert [image.inputs["x"].shape for image in plan.images] == [(3, 128), (64, 128)]
    assert [sum(o.flops for o in image.operators) for image in plan.images] == [
        2 * n * 128 * 64 for n in (3, 64)
    ]
    assert [image.measured_s for image in plan.images] == [None, profile.median_s]
    assert plan.images[1].n_calls == len(profile.steps)
    assert plan.arena_bytes == session.arena_bytes
    assert plan.weight_bytes == session.weight_bytes >= 4 * 128 * 64
    for page in (str(plan), plan._repr_html_()):
        assert "float32[64,128]" in page
        assert "MatMul" in page


def test_a_length_is_explained_before_it_is_fed() -> None:
    """What an input of that length would run, and a chosen schedule's layouts."""
    session = compile(WIDE, threads=1, schedule="none")
    plan = session.explain(5)
    (image,) = plan.images
    assert image.inputs["x"].shape == (5, 5)
    assert image.schedule == session.schedule
    assert "layouts (none)" in str(plan)
    assert len(session.plan.images) == 1


@pytest.mark.parametrize("length", ["5", 1.5, None])
def test_a_length_to_explain_is_a_whole_number(length: Any) -> None:
    """Text of a form or a configuration file failed in a comparison, without a word of the option."""
    with pytest.raises(InputError, match=r"length is .*; give a whole number"):
        compile(WIDE, threads=1).explain(length)


def test_a_sample_has_equal_sizes_where_the_model_says_so() -> None:
    """A node times samples: one that the model cannot take teaches it nothing."""
    model = parse("g (float[N,N] x, float[M,N] w) => (float[M,N] y) { y = MatMul(w, x) }")
    session = compile(model, threads=1)
    assert {x: a.shape for x, a in session.sample(4).items()} == {"x": (4, 4), "w": (1, 4)}
    request = session.request(session.sample(4))
    assert request.length == 16
    assert np.array_equal(session.answer(request).outputs["y"], np.full((1, 4), 4.0))


def test_the_identity_is_the_content(tmp_path: Path) -> None:
    """Nodes compare it: the same bytes in memory are one model, a file has its weights' hash as well."""
    data = SUM.SerializeToString()
    assert compile(SUM, threads=1).identity == compile(data, threads=1).identity == sha256(data).hexdigest()
    (tmp_path / "sum.onnx").write_bytes(data)
    session = compile(tmp_path / "sum.onnx", threads=1)
    assert session.name == "sum"
    assert session.identity == resolve(tmp_path / "sum.onnx").identity


def test_other_models_are_refused_with_the_verbs_that_take_them() -> None:
    """A name that is no file is not looked up on a hub either."""
    with pytest.raises(
        ModelError,
        match=r"text encoder, which pliant\.compile does not take; use pliant\.open, or on .* pliant run",
    ):
        compile("sst2")
    with pytest.raises(ModelError, match="there is no file 'owner/name'"):
        compile("owner/name")


def test_weights_are_packed_once_for_all_shapes() -> None:
    """Eight shapes of BERT-base must not be eight times its weights."""
    model, weight = linear(128, 64)
    session = compile(model, threads=1)
    held = set()
    for n in (3, 5, 64):
        x = np.ones((n, 128), np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ weight, rtol=1e-5, atol=1e-5)
        held.add(session.weight_bytes)
    assert len(session.plan.images) == 3
    assert len(held) == 1
    assert held.pop() >= weight.nbytes


def test_all_images_share_one_arena(wide: OnnxSession) -> None:
    """Runs take turns, so that memory for the largest shape is enough for every other."""
    for n in (3, 200, 7, 64, 200, 3):
        np.testing.assert_allclose(wide.run({"x": _square(n)})["y"], _wide_answer(n), rtol=1e-5, atol=1e-6)
    sizes = [image.arena_bytes for image in wide.plan.images]
    assert len(sizes) == 4
    assert _activations(wide) <= wide.arena_bytes == max(sizes) < sum(sizes)


def test_memory_is_not_held_per_shape(wide: OnnxSession) -> None:
    """Seven more shapes, none larger than the first: what is held grows by much less than their tensors."""
    wide.run({"x": _square(256)})
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n in range(230, 237):
        wide.run({"x": _square(n)})
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(image.arena_bytes for image in wide.plan.images)
    assert after - before < held / 4


def test_the_arena_shrinks_with_the_images_that_are_kept() -> None:
    """One request of a thousand rows must not be paid for until the process ends."""
    session = compile(WIDE, threads=1, images=2, without=AS_WRITTEN)
    for n in (200, 3, 7):
        np.testing.assert_allclose(session.run({"x": _square(n)})["y"], _wide_answer(n), rtol=1e-5, atol=1e-6)
    assert _activations(session) <= session.arena_bytes < 10_000


def test_values_that_shapes_follow_from_are_compiled_in_and_followed() -> None:
    """The shape fed to Reshape may change from run to run."""
    session = compile(parse("g (float[6] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }"), threads=1)
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (3, -1), (2, 3)):
        assert np.array_equal(session.run({"x": x, "s": np.int64(shape)})["y"], x.reshape(shape))


def test_a_size_that_is_fed_again_is_the_one_used_last() -> None:
    """A run of the same size skips the search for its image, and still counts as a use of it."""
    session = compile(SUM, threads=1, images=2)
    for n in (2, 3, 3):
        assert np.array_equal(session.run({"x": _rows(n), "w": _rows(n)})["y"], 2 * _rows(n))
    session.profile({"x": _rows(2), "w": _rows(2)}, 1)
    for n in (3, 4):
        assert np.array_equal(session.run({"x": _rows(n), "w": _rows(n)})["y"], 2 * _rows(n))
    assert [image.inputs["x"].shape[0] for image in session.plan.images] == [3, 4]


def test_what_follows_another_size_is_checked_again() -> None:
    """Inputs that must agree, after a run that agreed; then the size before."""
    session = compile(SUM, threads=1)
    for _ in range(2):
        session.run({"x": _rows(4), "w": _rows(4)})
        with pytest.raises(InputError, match="dimension 'N' is 4 in input 'x', but 2 in 'w'"):
            session.run({"x": _rows(4), "w": _rows(2)})
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run({"x": _rows(4), "w": _rows(4)})


def test_fixed_dimensions_are_compiled_at_once_and_held() -> None:
    """A bound dimension is a promise; feeding another size breaks it."""
    session = compile(SUM, dims={"N": 2}, threads=1)
    assert len(session.plan.images) == 1
    assert str(session.inputs[0]) == "float32[2,3]"
    with pytest.raises(InputError, match=r"'x' is float32\[4,3\], but must be float32\[2,3\]"):
        session.run({"x": _rows(4), "w": _rows(4)})


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": _rows(2)}, "'w' is missing"),
        ({"x": _rows(2), "w": _rows(2), "z": _rows(2)}, "there is no input 'z'"),
        (
            {"x": _rows(2).astype(np.float64), "w": _rows(2)},
            r"'x' is float64\[2,3\], but must be float32\[N,3\]",
        ),
        ({"x": _rows(2)[0], "w": _rows(2)}, r"'x' is float32\[3\], but must be"),
        ({"x": _rows(2)[:, :2], "w": _rows(2)}, r"axis 1 is 2"),
        ({"x": _rows(2), "w": _rows(3)}, r"dimension 'N' is 2 in input 'x', but 3 in 'w'"),
        ({"x": {"a": 1}, "w": _rows(1)}, "'x' is a dict; feed a numpy array"),
    ],
)
def test_a_wrong_feed_is_named(feeds: dict[str, np.ndarray], said: str) -> None:
    """A kernel that trusts a wrong shape would read other memory."""
    with pytest.raises(InputError, match=said):
        compile(SUM, threads=1).run(feeds)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 0}, "0 threads"),
        ({"images": 0}, "at least one image"),
        ({"dims": {"M": 2}}, r"no dimension 'M'; it has \['N'\]"),
        ({"dims": {"N": -1}}, "'N' is -1"),
        ({"without": ["nothing"]}, r"no passes \['nothing'\]"),
    ],
)
def test_options_that_make_no_sense_are_errors(options: dict[str, object], said: str) -> None:
    """Misspelt options must not be dropped silently."""
    with pytest.raises(InputError, match=said):
        compile(SUM, **options).run({"x": _rows(2), "w": _rows(2)})


def test_rows_out_of_order_and_columns_apart_are_read_rightly() -> None:
    """Feeds need not be contiguous."""
    session = compile(SUM, threads=1)
    x = np.asfortranarray(_rows(4))
    assert np.array_equal(session.run({"x": x, "w": _rows(8)[::2]})["y"], x + _rows(8)[::2])


def test_constants_and_inputs_may_be_outputs() -> None:
    """Nothing is left to run then, but the caller's arrays are filled."""
    model = parse(
        "g (float[2] x) => (float[2] y, int64[1] s, float[2] z) { y = Identity(x) s = Shape(x) z = Neg(x) }"
    )
    out = compile(model, threads=1).run({"x": np.float32([1, 2])})
    assert [out["y"].tolist(), out["s"].tolist(), out["z"].tolist()] == [[1, 2], [2], [-1, -2]]


def test_sessions_of_equal_threads_share_a_pool() -> None:
    """Ten models must not be ten times the threads."""
    first = compile(SUM, threads=2)
    threads = threading.enumerate()
    second = compile(SUM, threads=2)
    assert threading.enumerate() == threads
    assert {first.plan.n_threads, second.plan.n_threads} == {2}


def test_its_need_is_that_of_its_memory() -> None:
    """Weights of kernels, as given, and the arena; explanations had only the first, and no limit."""
    model = parse("g (float[B,256] x) => (float[B,256] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(256, dtype=np.float32), "w"))
    session = compile(model, threads=1, memory="20MB")
    session.run({"x": np.ones((4000, 256), np.float32)})
    need = session.need(4000)
    assert need.held_bytes == session.memory.measured_bytes >= 2 * 256 * 256 * 4
    assert need.most_bytes == 20_000_000


def test_its_need_is_told_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node explains on its event loop, which must not wait for an answer in progress."""
    session = compile(SUM, threads=1)
    session.run({"x": _rows(2), "w": _rows(2)})
    asked, walk = list[int](), GraphRunner.walk

    def explained(runner: GraphRunner, *args: Any) -> Any:
        thread = threading.Thread(target=lambda: asked.append(session.need(2).held_bytes), daemon=True)
        thread.start()
        thread.join(60)
        return walk(runner, *args)

    monkeypatch.setattr(GraphRunner, "walk", explained)
    session.run({"x": _rows(2), "w": _rows(2)})
    assert asked == [session.need(2).held_bytes]


def test_more_memory_than_the_machine_has_is_refused() -> None:
    """Asking the system for it would end in the out-of-memory killer."""
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("Neg", ["e"], ["y"])]
    shape = helper.make_tensor("s", 7, [2], [1 << 18, 1 << 19])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("y", 1, ["a", "b"])],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(GraphError, match=r"GB for its tensors|would be"):
        compile(model, threads=1)
