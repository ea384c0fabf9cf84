"""Opening ONNX models: what is described, what stays mapped, and that damage is named, never believed."""

import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pliant.errors import GraphError, InputError, ModelError
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.onnx_models import external, linear, parse


def test_inputs_are_described_with_their_symbols() -> None:
    """A session's user asks for names, types and which dimensions are free."""
    model = open_onnx(parse("g (float[N,3] x, int64[?, N] i, bool b) => (float[N,3] y) { y = Relu(x) }"))
    assert [f"{p.name}: {p}" for p in model.inputs] == ["x: float32[N,3]", "i: int64[?,N]", "b: bool[]"]
    assert model.symbols == ("N",)
    assert not model.inputs[0].is_static


@pytest.mark.parametrize("name", ["?", "", " ", "*", "-1", "None"])
def test_placeholders_are_no_names_of_dimensions(name: str) -> None:
    """Exporters write one text for every size they do not know: [?,3,?,?] need not be three equal sizes."""
    x, y = (helper.make_tensor_value_info(t, 1, [name, 3, name, name]) for t in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = open_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert model.inputs[0].dims == model.outputs[0].dims == (None, 3, None, None)
    assert model.symbols == ()


def test_an_input_with_a_value_is_a_constant() -> None:
    """Older exporters list weights among the inputs."""
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2]), "w"))
    opened = open_onnx(model)
    assert [p.name for p in opened.inputs] == ["x"]
    assert opened.constants["w"].tolist() == [1, 2]


def test_weights_of_a_file_stay_in_the_file(tmp_path: Path) -> None:
    """BERT-base's 440 MB must not be in memory twice."""
    model, weight = linear(256, 128)
    onnx.save(model, tmp_path / "m.onnx")
    held = open_onnx(tmp_path / "m.onnx").constants["W"]
    assert np.array_equal(held, weight)
    assert isinstance(_owner(held), mmap.mmap)
    assert not held.flags.writeable


def test_external_weights_stay_in_their_file(tmp_path: Path) -> None:
    """Models over 2 GB can be stored in no other way."""
    held = open_onnx(external(tmp_path, 256, 128)).constants["W"]
    assert np.array_equal(held, linear(256, 128)[1])
    assert isinstance(_owner(held), mmap.mmap)


def test_pages_may_be_dropped_and_come_back(tmp_path: Path) -> None:
    """After packing, mapped weights need not stay resident; constants read later must still be right."""
    model = open_onnx(external(tmp_path, 256, 128))
    model.drop_pages()
    assert np.array_equal(model.constants["W"], linear(256, 128)[1])


def test_a_missing_file_is_named() -> None:
    """The commonest mistake of all."""
    with pytest.raises(ModelError, match=r"there is no file 'nowhere\.onnx'"):
        open_onnx("nowhere.onnx")


@pytest.mark.parametrize("content", [b"", b"hello world, this is no model", b"\x00" * 100, b"PK\x03\x04zip"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever it is, the message says that it is no ONNX model and which file."""
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        open_onnx(tmp_path / "m.onnx")


def test_another_kind_of_source_is_refused() -> None:
    """A directory or a session passed by mistake."""
    with pytest.raises(InputError, match="not int"):
        open_onnx(3)


@pytest.mark.parametrize("dims", [[1 << 40, 1 << 20], [64, 49], [-1, 48], [0]])
def test_a_shape_its_values_do_not_fill_is_refused(dims: list[int]) -> None:
    """A file may claim terabytes; nothing of that size is ever asked for."""
    model, _ = linear()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(ModelError, match="'W'"):
        open_onnx(model)


def test_values_in_typed_fields_are_counted_too() -> None:
    """The other way to store a tensor."""
    model, _ = linear(2, 2)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1, 2, 3])
    with pytest.raises(ModelError, match=r"'W', float32\[2, 2\], has 3 values"):
        open_onnx(model)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu(a) a = Relu(y) }", "topologically sorted"),
        ("g (float[2] x) => (float[2] y) { y = Relu(nothing) }", "nothing"),
        ("g (float[2] x) => (float[2] y) { y = Relu(x) y = Abs(x) }", "y"),
        ("g (float[2] x) => (float[2] y) { y = Nonsense(x) }", "Nonsense"),
        ("g (string[2] x) => (string[2] y) { y = Identity(x) }", "string"),
        (
            "g (seq(seq(float[2])) x) => (seq(seq(float[2])) y) { y = Identity(x) }",
            "'x' is or holds a sequence",
        ),
    ],
)
def test_a_graph_that_breaks_the_rules_is_refused(text: str, said: str) -> None:
    """Cycles, unmade tensors, tensors made twice, unknown operators, values that are no tensors."""
    with pytest.raises(GraphError, match=said):
        _ = open_onnx(parse(text)).inputs


def test_sparse_weights_are_refused_by_name() -> None:
    """They are rare enough to ask for dense ones."""
    model, _ = linear(2, 2)
    values = numpy_helper.from_array(np.float32([1]), "S")
    indices = numpy_helper.from_array(np.int64([0]), "S.indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(GraphError, match=r"sparse weights \['S'\]"):
        open_onnx(model)


def _owner(array: np.ndarray) -> object:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


@pytest.mark.parametrize("which", range(3))
def test_text_that_is_no_text_is_refused_wherever_it_stands(which: int) -> None:
    """Domains of nodes, functions and opsets too: protobuf hands them on as bytes."""
    data = parse(
        "g (float[2] x) => (float[2] y) { y = local.f(x, x) }",
        functions="""<opset_import: ["": 17], domain: "local"> f (a, b) => (c) { c = Add(a, b) }""",
    ).SerializeToString()
    parts = data.split(b"local")
    assert len(parts) == 4
    broken = b"local".join(parts[: which + 1]) + b"loca\x8e" + b"local".join(parts[which + 1 :])
    with pytest.raises(GraphError, match="not text"):
        open_onnx(broken)
