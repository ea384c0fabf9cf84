"""The longest input that ONNX and recurrent sessions have memory for, against asking them."""

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pliant.api.compile_onnx import compile
from pliant.errors import BudgetError
from pliant.ir.endpoint import NO_ANSWER_S
from pliant.kernels.emit.isa import AVX2
from pliant.models.recurrent.recurrent_source import open_recurrent_source
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.process_memory import MemoryBudget
from tests.compiler.rules.run_node import machine
from tests.recurrent_models import write_recurrent
from tests.run.array_sessions.attention_model import ids, write_attention

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

KINDS: list[dict[str, Any]] = [
    {},
    {"weights": 4},
    {"weights": "auto"},
    {"buckets": {"n": (16, 48, 96, 300)}},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_attention(tmp_path_factory.mktemp("models") / "attention.onnx")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_attention(tmp_path_factory.mktemp("models") / "words.onnx", mixes=False)


def bytes_for(path: Path, n: int, **options: Any) -> int:
    """What a session needs for a single input of length n."""
    with compile(path, threads=1, memory=10**9, **options) as session:
        session.run(ids(1, n))
        return session.memory.predicted_bytes


def is_answered(session: OnnxSession | RecurrentSession, n: int) -> bool:
    try:
        session.answer(session.request(session.sample(n)))
    except BudgetError:
        return False
    return True


def assert_told(session: OnnxSession | RecurrentSession, most_n: int) -> None:
    """Levels, curve and estimate have the limit, which is what the session does if it is asked."""
    levels = session.levels()
    assert session.levels() is levels
    assert [level.most_n for level in levels] == [most_n]
    assert session.curve().at(most_n) < NO_ANSWER_S <= session.curve().at(most_n + 1)
    assert session.estimate(session.request(session.sample(most_n))).seconds < NO_ANSWER_S
    with pytest.raises(BudgetError, match=f"enough for {most_n}"):
        session.estimate(session.request(session.sample(most_n + 1)))
    assert is_answered(session, most_n)
    assert not is_answered(session, most_n + 1)


@pytest.mark.parametrize("options", KINDS, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_longest_input_of_a_graph_is_found_before_it_is_asked(
    model: Path, words: Path, options: dict[str, Any], data: st.DataObject
) -> None:
    """Between what the shortest and a long input need; "auto" knows it once the first shape has decided."""
    model = words if "buckets" in options else model
    fixed = options | {"weights": options.get("weights", "fp32")}
    least, most = (bytes_for(model, n, **fixed) for n in (1, 300))
    memory = data.draw(st.integers(least, most - 1))
    with compile(model, threads=1, memory=memory, **options) as session:
        if options.get("weights") == "auto":
            assert session.most_length() is None
            session.run(ids(1, 1))
        most_n = session.most_length()
        assert most_n is not None
        assert_told(session, most_n)
        for n in data.draw(st.lists(st.integers(1, 320), max_size=4)):
            if n <= max(options.get("buckets", {}).get("n", (n,))):
                assert is_answered(session, n) == (n <= most_n)


def test_a_limit_of_the_model_is_not_one_of_memory(tmp_path: Path) -> None:
    """A longer input is wrong everywhere: it must not be sent on as if another node had room for it."""
    path = write_attention(tmp_path / "placed.onnx", most_n=20)
    with compile(path, threads=1, memory=10**9) as session:
        assert session.most_length() is None
        assert is_answered(session, 20)
    with compile(path, threads=1, memory=bytes_for(path, 9)) as session:
        most_n = session.most_length()
        assert most_n is not None
        assert 9 <= most_n < 20
        assert_told(session, most_n)
    with compile(path, threads=1) as session:
        assert session.most_length() is None


def test_several_open_dimensions_are_limited_by_shape(tmp_path: Path) -> None:
    """A length of 64 may be one long row or many short ones, which need other amounts of memory."""
    path = write_attention(tmp_path / "rows.onnx", batch="batch")
    memory = bytes_for(path, 40)
    with compile(path, threads=1, memory=memory) as session:
        assert session.most_length() is None
        assert [level.most_n for level in session.levels()] == [None]

        def most(*shape: int) -> int | None:
            return session.most_length(session.request(ids(*shape)))

        assert most(1, 5) == 40
        assert most(3, 5) == 3 * 40, "no row may be longer than one alone"
        session.run(ids(1, 40))
        with pytest.raises(BudgetError):
            session.run(ids(1, 41))
        with pytest.raises(BudgetError):
            session.run(ids(8, 30))
        assert most(8, 30) == 8 * 29
        assert most(9, 30) == 9 * 29
        assert most(2, 30) == 2 * 40
        assert most(1, 240) == 40
        with pytest.raises(BudgetError, match="enough for 232"):
            session.estimate(session.request(ids(8, 30)))
        session.run(ids(2, 3))


def test_values_that_need_too_much_are_no_limit_of_other_values(tmp_path: Path) -> None:
    """One client's huge number must not close the model to all others."""
    path = write_tiled(tmp_path / "tiled.onnx")
    with compile(path, threads=1, memory="1MB") as session:
        small = {"x": np.ones((2, 16), np.float32), "times": np.array([2, 1])}
        wanted = session.run(small)["y"]
        with pytest.raises(BudgetError):
            session.run(small | {"times": np.array([100_000, 1])})
        assert session.most_length() is None
        request = session.request(small)
        assert session.estimate(request).seconds < NO_ANSWER_S
        np.testing.assert_array_equal(session.answer(request).outputs["y"], wanted)


def write_tiled(path: Path) -> Path:
    """`x` FP32 [b, 16], repeated `times` INT64 [2], through a product."""
    weight = numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["tiled"]),
        helper.make_node("MatMul", ["tiled", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 16]),
        helper.make_tensor_value_info("times", TensorProto.INT64, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 16])
    graph = helper.make_graph(nodes, "tiled", inputs, [output], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_an_unknown_limit_is_learned_from_what_was_refused(model: Path) -> None:
    """Where schedules are measured, each length would take seconds, so the first long input shows it."""
    memory = bytes_for(model, 40)
    with compile(model, threads=1, memory=memory, schedule="paper") as session:
        assert session.most_length() is None
        with pytest.raises(BudgetError):
            session.run(ids(1, 400))
        assert session.most_length() == 399
        assert not is_answered(session, 200)
        assert session.levels()[-1].most_n == 199


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("n_steps", [64, 128, 512])
def test_the_longest_text_of_a_recurrent_model_is_known(
    tmp_path: Path, n_steps: int, is_shared: bool
) -> None:
    """Its activations are made for powers of two; what is short of the next one is not used."""
    spec = RecurrentSpec("lstm", 10, 6, 20, pooling=("max", "mean"), labels=("bad", "good"))
    source, made = open_recurrent_source(write_recurrent(tmp_path / "model", spec)), machine(AVX2, tmp_path)
    with RecurrentSession(source, *made, memory=10**9) as session:
        assert session.most_length() is None
        needed = [0, 0]
        for i, n in enumerate((n_steps, 2 * n_steps)):
            session.answer(session.request(session.sample(n)))
            needed[i] = session.memory.predicted_bytes
    for most in (needed[0], needed[1] - 1):
        memory = MemoryBudget(most) if is_shared else most
        with RecurrentSession(source, *made, memory=memory) as session:
            assert_told(session, n_steps)
            assert not is_answered(session, 16_384)


def test_a_limit_follows_what_others_leave_of_a_budget(tmp_path: Path) -> None:
    """Another model takes its share at any time, and gives it back."""
    spec = RecurrentSpec("gru", 10, 6, 20, labels=("bad", "good"))
    source, made = open_recurrent_source(write_recurrent(tmp_path / "model", spec)), machine(AVX2, tmp_path)
    with RecurrentSession(source, *made, memory=10**9) as session:
        session.answer(session.request(session.sample(256)))
        memory, other = MemoryBudget(session.memory.predicted_bytes), Event()
    with RecurrentSession(source, *made, memory=memory) as session:
        assert session.most_length() == 256
        memory.reserve(other, 1)
        assert session.levels()[-1].most_n == 128
        assert not is_answered(session, 129)
        memory.release(other)
        assert_told(session, 256)


def test_a_first_input_of_fixed_shape_leaves_the_limit_to_the_next(tmp_path: Path) -> None:
    """The length of an input is that of the first input with open dimensions: its limit was never known."""
    model = onnx.load(write_attention(tmp_path / "attention.onnx"))
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1])
    (made,) = model.graph.output
    wide, made.name = made.name, "scaled"
    model.graph.node.append(helper.make_node("Mul", [wide, "scale"], ["scaled"]))
    model.graph.input.insert(0, scale)
    onnx.save(model, tmp_path / "scaled.onnx")
    with compile(tmp_path / "scaled.onnx", threads=1) as session:
        assert session.inputs[0].name == "scale"
        assert session.request(session.sample(37)).length == 37
        needed = {}
        for n in (16, 64):
            session.run(session.sample(n))
            needed[n] = session.memory.predicted_bytes
    with compile(tmp_path / "scaled.onnx", threads=1, memory=needed[64]) as session:
        session.answer(session.request(session.sample(8)))
        most_n = session.most_length()
        assert most_n is not None
        assert most_n > 16
        assert_told(session, most_n)
