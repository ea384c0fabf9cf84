"""Inputs that do not fit each other are refused while a model is bound, by the names of node and tensor."""

import pytest
from onnx import TensorProto, helper

from pliant.errors import GraphError
from pliant.ir.graph import Graph
from tests.models.onnx_models import bound

Shapes = dict[str, tuple[int, ...]]


def one_node(op: str, shapes: Shapes, opset: int = 20, **attributes: object) -> Graph:
    """The graph of node `n`, whose inputs have these shapes; what ends in a type's name is of that type."""
    kinds = {"i64": TensorProto.INT64, "i32": TensorProto.INT32, "u8": TensorProto.UINT8}
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name.split("_")[-1], TensorProto.FLOAT), shape)
        for name, shape in shapes.items()
    ]
    node = helper.make_node(op, list(shapes), ["y"], name="n", **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["any"])
    graph = helper.make_graph([node], "g", inputs, [result])
    return bound(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


LSTM = {"x": (4, 2, 3), "w": (1, 8, 3), "r": (1, 8, 2), "b": (1, 16), "l_i32": (2,), "h": (1, 2, 2)}
CONV = {"x": (1, 4, 5, 5), "w": (6, 2, 3, 3), "b": (6,)}
DEFORM = {"x": (1, 2, 3, 3), "w": (1, 2, 2, 2), "o": (1, 8, 2, 2), "b": (1,), "m": (1, 4, 2, 2)}
MATMUL = {"a_u8": (2, 3), "b_u8": (3, 4), "x_u8": (2,), "y_u8": (4,)}
CASES: list[tuple[str, Shapes, dict[str, object], Shapes]] = [
    ("LSTM", LSTM, {"hidden_size": 2}, {"w": (1, 8, 4)}),
    ("LSTM", LSTM, {"hidden_size": 2}, {"w": (1, 9, 3)}),
    ("LSTM", LSTM, {"hidden_size": 2}, {"r": (1, 8, 3)}),
    ("LSTM", LSTM, {"hidden_size": 2}, {"b": (1, 8)}),
    ("LSTM", LSTM, {"hidden_size": 2}, {"l_i32": (3,)}),
    ("LSTM", LSTM, {"hidden_size": 2}, {"h": (1, 3, 2)}),
    ("Conv", CONV, {"group": 2}, {"w": (6, 4, 3, 3)}),
    ("Conv", CONV, {"group": 2}, {"w": (5, 2, 3, 3)}),
    ("Conv", CONV, {"group": 2}, {"b": (5,)}),
    ("Conv", CONV, {"group": 2, "kernel_shape": [3, 3]}, {"w": (6, 2, 2, 2)}),
    ("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 3, 2, 2), "b": (3,)}, {}, {"w": (3, 3, 2, 2)}),
    ("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 3, 2, 2), "b": (3,)}, {}, {"b": (4,)}),
    ("DeformConv", DEFORM, {}, {"w": (1, 3, 2, 2)}),
    ("DeformConv", DEFORM, {}, {"o": (1, 6, 2, 2)}),
    ("DeformConv", DEFORM, {}, {"b": (2,)}),
    ("DeformConv", DEFORM, {}, {"m": (1, 8, 2, 2)}),
    (
        "BatchNormalization",
        {"x": (1, 4, 5), "s": (4,), "b": (4,), "m": (4,), "v": (4,)},
        {},
        {"v": (3,)},
    ),
    ("InstanceNormalization", {"x": (1, 4, 5), "s": (4,), "b": (4,)}, {}, {"b": (5,)}),
    ("LayerNormalization", {"x": (2, 3, 4), "s": (4,), "b": (4,)}, {}, {"s": (3,)}),
    ("PRelu", {"x": (2, 3, 4), "s": (3, 1)}, {}, {"s": (2, 1)}),
    ("Gemm", {"a": (2, 3), "b": (3, 4), "c": (4,)}, {}, {"c": (2,)}),
    ("GatherElements", {"x": (3, 4), "i_i64": (2, 4)}, {"axis": 0}, {"i_i64": (2, 5)}),
    ("ScatterElements", {"x": (3, 4), "i_i64": (2, 4), "u": (2, 4)}, {"axis": 0}, {"u": (2, 3)}),
    ("ScatterND", {"x": (3, 4), "i_i64": (2, 1), "u": (2, 4)}, {}, {"u": (1, 4)}),
    ("GridSample", {"x": (2, 3, 4, 4), "g": (2, 5, 5, 2)}, {}, {"g": (1, 5, 5, 2)}),
    ("RoiAlign", {"x": (1, 3, 4, 4), "r": (5, 4), "b_i64": (5,)}, {}, {"b_i64": (4,)}),
    ("MatMulInteger", MATMUL, {}, {"y_u8": (0,)}),
    ("MatMulInteger", MATMUL, {}, {"x_u8": (3,)}),
    ("MatMulInteger", MATMUL, {}, {"x_u8": (0, 1)}),
    ("QuantizeLinear", {"x": (3, 4), "s": (4,), "z_u8": (4,)}, {}, {"z_u8": (3,)}),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "wrong"), CASES)
def test_a_tensor_that_does_not_fit_the_others_is_named(
    op: str, shapes: Shapes, attributes: dict[str, object], wrong: Shapes
) -> None:
    """ONNX's inference compares none of these, and a kernel would read or write outside a tensor."""
    assert one_node(op, shapes, **attributes).nodes
    (name,) = wrong
    with pytest.raises(GraphError, match=f"'n' .*('{name}'|groups)"):
        one_node(op, shapes | wrong, **attributes)


@pytest.mark.parametrize("attributes", [{"offset_group": 1 << 31}, {"offset_group": 0}, {"group": 0}])
def test_groups_that_channels_are_not_of_are_refused(attributes: dict[str, int]) -> None:
    """The kernel divides by them: a model of one node ended the process."""
    with pytest.raises(GraphError, match=r"'n'.*group"):
        one_node("DeformConv", DEFORM, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [0, 1]}, {"strides": [1]}, {"dilations": [-1, 1]}, {"pads": [0, 0, -1, 0]}, {"group": 3}],
)
def test_a_window_that_cannot_be_meant_is_refused(attributes: dict[str, object]) -> None:
    """Strides of zero divide by it; a list of the wrong length describes no window."""
    with pytest.raises(GraphError, match="'n'"):
        one_node("Conv", {"x": (1, 4, 5, 5), "w": (4, 4, 3, 3)}, **attributes)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [1 << 31, 1], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [1 << 12, 1 << 12], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [2, 2], "dilations": [1, 1 << 31], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [2, 2], "strides": [1 << 31, 1]},
        {"kernel_shape": [2, 2], "pads": [0, 0, 0, 1 << 31]},
    ],
)
def test_a_window_that_no_kernel_walks_in_time_is_refused(op: str, attributes: dict[str, object]) -> None:
    """Padding makes any window fit its input: a kernel of 2^31 held a thread for minutes."""
    with pytest.raises(GraphError, match=r"'n'.*up to 1048576"):
        one_node(op, {"x": (1, 3, 8, 8)}, **attributes)


@pytest.mark.parametrize(("name", "value"), [("hidden_size", 3), ("layout", -7), ("direction", "sideways")])
def test_attributes_of_a_recurrent_layer_must_be_those_of_its_weights(name: str, value: object) -> None:
    """What says otherwise must not be passed over: inference and kernel would read it differently."""
    with pytest.raises(GraphError, match=f"{name} is"):
        one_node("LSTM", LSTM, **{"hidden_size": 2, name: value})


def test_numbers_that_loops_run_to_are_bounded() -> None:
    """A norm of order 2^31 would hold a thread for hours; no model has one."""
    with pytest.raises(GraphError, match="p is 2147483648"):
        one_node("LpPool", {"x": (1, 3, 8, 8)}, kernel_shape=[2, 2], p=1 << 31)
    shapes: Shapes = {"x": (1, 3, 4, 4), "r": (5, 4), "b_i64": (5,)}
    with pytest.raises(GraphError, match="sampling_ratio is 65536"):
        one_node("RoiAlign", shapes, sampling_ratio=65536)


def test_scales_may_be_one_per_channel_or_per_block() -> None:
    """Weights quantized by axis, or in blocks along one, are what exporters write."""
    shapes: Shapes = {"x": (3, 4), "s": (3,), "z_u8": (3,)}
    assert one_node("QuantizeLinear", shapes, opset=21, axis=0).nodes
    shapes = {"x": (3, 4), "s": (3, 2), "z_u8": (3, 2)}
    assert one_node("QuantizeLinear", shapes, opset=21, axis=1, block_size=2).nodes
    with pytest.raises(GraphError, match="'s'"):
        one_node("QuantizeLinear", shapes | {"s": (3, 3)}, opset=21, axis=1, block_size=2)
