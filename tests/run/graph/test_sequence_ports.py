"""Models whose own inputs or outputs are sequences and optional values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pliant import compile
from pliant.api.compile_onnx import compile_image, shared_pool
from pliant.compiler.executable.call import Target
from pliant.errors import GraphError, InputError
from pliant.ir.reply import Reply
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.serve.protocol.inference import signature
from tests.models.onnx_models import parse

JOINED = """g (seq(float[N,3]) parts, float[3,2] w) => (float[M,2] y, seq(float[a,b]) halves) {
  all = ConcatFromSequence <axis = 0> (parts)
  y = MatMul(all, w)
  two = Constant <value = int64 {2}> ()
  halves = SplitToSequence <axis = 0> (y, two) }"""

PERHAPS = """g (optional(float[2]) x) => (bool has, float[2] y) {
  has = OptionalHasElement(x)
  y = If (has) <
    then_branch = there () => (float[2] a) { v = OptionalGetElement(x)  a = Add(v, v) },
    else_branch = not () => (float[2] b) { b = Constant <value = float[2] {7, 8}> () }> }"""

PASSED = "g (optional(seq(float[N])) x) => (optional(seq(float[N])) y) { y = Identity(x) }"


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(result: Any, right: Any) -> None:
    """Products of 3 numbers: 1e-6 of their size covers any order of additions."""
    if isinstance(right, np.ndarray):
        assert (result.dtype, result.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(result, right, 1e-6, 1e-6)
        return
    assert isinstance(result, list) == isinstance(right, list)
    for x, y in zip(result or (), right or (), strict=True):
        agree(x, y)


def same_as_onnxruntime(model: Any, *feeds: Mapping[str, Any]) -> OnnxSession:
    session = compile(model, threads=1)
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [p.type for p in session.inputs] == [p.type for p in right.get_inputs()]
    for one in feeds:
        agree(list(session.run(one).values()), right.run(None, dict(one)))
    return session


def test_sequences_are_lists_in_and_out() -> None:
    """As many arrays as a caller has, of lengths of their own: without padding and without a mask."""
    w = floats(3, 2, seed=9)
    parts = [[floats(n, 3, seed=n) for n in lengths] for lengths in ((2, 3), (1,), (4, 4, 1), (2, 3))]
    session = same_as_onnxruntime(parse(JOINED), *({"parts": p, "w": w} for p in parts))
    assert str(session.inputs[0]) == "seq(float32[N,3])"
    assert str(session.outputs[1]) == "seq(float32[a,b])"
    assert len(session.run({"parts": parts[2], "w": w})["halves"]) == 5


def test_an_optional_value_may_be_absent() -> None:
    """None is what onnxruntime takes, too."""
    session = same_as_onnxruntime(
        parse(PERHAPS, opset=18), {"x": floats(2)}, {"x": None}, {"x": floats(2, seed=1)}
    )
    assert session.run({"x": None})["y"].tolist() == [7, 8]


@pytest.mark.parametrize("given", [None, [], [floats(2), floats(3)]])
def test_an_optional_sequence_is_passed_on(given: Any) -> None:
    """`Identity` gives what it is given, so no reference is needed."""
    result = compile(parse(PASSED, opset=18), threads=1).run({"x": given})["y"]
    assert (result is None) == (given is None)
    agree(result, given)


def test_an_input_that_is_an_output_needs_no_node() -> None:
    """Exporters leave such ports in models that they cut."""
    model = parse("g (seq(float[N]) x, float[2] z) => (seq(float[N]) x, float[2] y) { y = Relu(z) }")
    results = compile(model, threads=1).run({"x": [floats(3)], "z": np.array([-1, 2], np.float32)})
    agree(results["x"], [floats(3)])
    assert results["y"].tolist() == [0, 2]


def test_several_feeds_are_answered_one_after_another() -> None:
    """Lists cannot be stacked; `run_many` still takes them."""
    session = compile(parse(JOINED), threads=1)
    feeds = [{"parts": [floats(n, 3)], "w": floats(3, 2)} for n in (2, 2, 5)]
    for found, one in zip(session.run_many(feeds), feeds, strict=True):
        agree(list(found.values()), list(session.run(one).values()))


def test_numbers_in_lists_are_taken_and_types_widened() -> None:
    """What an array of a tensor port may be, an element may be."""
    session = compile(parse(JOINED), threads=1)
    halves = {"parts": [np.ones((1, 3), np.float16), [[1, 1, 1]]], "w": floats(3, 2)}
    ones = {"parts": [np.ones((2, 3), np.float32)], "w": floats(3, 2)}
    agree(session.run(halves)["y"], session.run(ones)["y"])


def test_a_call_takes_the_list_of_the_only_input() -> None:
    """And its reply prints."""
    model = parse("g (seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }")
    reply = compile(model, threads=1)([floats(3), floats(2)])
    assert isinstance(reply, Reply)
    agree(reply.output, [floats(3), floats(2)])
    assert str(reply).startswith("y sequence of 2, ")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            np.ones((2, 3), np.float32),
            r"'parts' must be seq\(float32\[N,3\]\), but is a ndarray: feed a list",
        ),
        (None, "'parts' must be seq.*but is a NoneType"),
        ([floats(2, 3), floats(2, 4)], r"'parts\[1\]' is float32\[2,4\], but must be float32\[N,3\]"),
        ([floats(3)], r"'parts\[0\]' is float32\[3\]"),
        ([np.ones((2, 3))], r"'parts\[0\]' is float64\[2,3\].*only casts that lose nothing"),
        ([None], r"'parts\[0\]' is a NoneType"),
        ([], r"ConcatFromSequence.*a sequence of 0"),
    ],
)
def test_what_is_wrong_in_a_sequence_is_named(parts: Any, message: str) -> None:
    """The input, the element, what it is, what it must be."""
    with pytest.raises(InputError, match=message):
        compile(parse(JOINED), threads=1).run({"parts": parts, "w": floats(3, 2)})


def test_a_value_of_the_wrong_shape_is_no_optional_value() -> None:
    """It is checked as a tensor is."""
    session = compile(parse(PERHAPS, opset=18), threads=1)
    with pytest.raises(InputError, match=r"'x' is float32\[3\], but must be float32\[2\]"):
        session.run({"x": floats(3)})


def test_a_sequence_is_written_into_no_array() -> None:
    """`out` holds arrays; tensors beside it are still written there."""
    session = compile(parse(JOINED), threads=1)
    feeds = {"parts": [floats(4, 3)], "w": floats(3, 2)}
    out = np.empty((4, 2), np.float32)
    assert session.run(feeds, {"y": out})["y"] is out
    with pytest.raises(InputError, match="'halves' is a sequence: it is written into no array"):
        session.run(feeds, {"halves": out})


def test_what_takes_tensors_only_says_so() -> None:
    """Requests of nodes and of the command line, samples, C code, buckets: each by the port's name."""
    session = compile(parse(JOINED), threads=1)
    held = r"takes tensors only, but 'parts' is seq\(float32\[N,3\]\)"
    with pytest.raises(InputError, match=f"a request {held}"):
        session.request({"parts": [floats(2, 3)], "w": floats(3, 2)})
    with pytest.raises(InputError, match=f"a sample {held}"):
        session.explain(8)
    with pytest.raises(InputError, match=f"a node {held}"):
        signature(session)
    with pytest.raises(InputError, match=f"a compiled graph {held}"):
        compile_image(parse(JOINED).SerializeToString(), Target(shared_pool(1)[0].isa, 1))
    with pytest.raises(GraphError, match="not a single graph"):
        session.graph({"parts": [floats(2, 3)], "w": floats(3, 2)})
    with pytest.raises(InputError, match=r"buckets cannot be given for a model whose 'parts' is seq"):
        compile(parse(JOINED), threads=1, buckets={"N": (2, 4)})


def test_a_profile_takes_sequences() -> None:
    """It names the host steps."""
    session = compile(parse(JOINED), threads=1)
    profile = session.profile({"parts": [floats(2, 3)], "w": floats(3, 2)}, runs=2)
    assert {"ConcatFromSequence", "SplitToSequence"} <= {step.op for step in profile.steps}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("seq(string)", "'x' holds string values"),
        ("seq(optional(float[N]))", "'x' is or holds a optional"),
    ],
)
def test_other_values_are_refused_when_a_model_is_opened(held: str, message: str) -> None:
    """Before anything runs, naming the port."""
    with pytest.raises(GraphError, match=message):
        _ = open_onnx(parse(f"g ({held} x) => ({held} y) {{ y = Identity(x) }}")).inputs


def test_the_command_line_refuses_by_name(tmp_path: Path) -> None:
    """An .npz holds one array a name."""
    from typer.testing import CliRunner

    from pliant.cli.app import app

    onnx.save(parse(JOINED), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", parts=floats(2, 3), w=floats(3, 2))
    result = CliRunner().invoke(
        app, ["run", str(tmp_path / "model.onnx"), "--input", str(tmp_path / "x.npz")]
    )
    assert result.exit_code == 1
    assert "a request takes tensors only, but 'parts' is seq" in " ".join(result.output.split())


def test_an_answer_is_the_callers_own() -> None:
    """Written to, it changes neither what was fed nor the model; host steps give views and constants."""
    perhaps = compile(parse(PERHAPS, opset=18), threads=1)
    perhaps.run({"x": None})["y"][...] = 0
    assert perhaps.run({"x": None})["y"].tolist() == [7, 8]
    late = "g (float[N] x) => (int64[a,b] at, int64[1] s) { y = Relu(x) at = NonZero(y) s = Shape(x) }"
    with compile(parse(late), threads=1) as session:
        session.run({"x": floats(5)})["s"][...] = 0
        assert session.run({"x": floats(5)})["s"].tolist() == [5]
    split = compile(parse("g (float[4] x) => (seq(float[a]) y) { y = SplitToSequence(x) }"), threads=1)
    passed = compile(parse(PASSED, opset=18), threads=1)
    x = floats(4)
    for results in (split.run({"x": x})["y"], passed.run({"x": [x]})["y"]):
        results[0][...] = 9
        agree(x, floats(4))
