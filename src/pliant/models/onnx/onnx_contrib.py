"""Expand the operators that onnxruntime's quantizer writes into functions of ONNX operators.

`quantize_static` with QOperator and `quantize_dynamic` write them, in the domain com.microsoft.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from onnx import helper, numpy_helper

from pliant.ir.graph import TensorType

DOMAIN = "com.microsoft"
_OPSET = 21


def contrib_function(
    node: Any, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]
) -> Any | None:
    """A FunctionProto that replaces `node`; None for an operator that is not in this module."""
    write = _OPERATORS.get(node.op_type) if node.domain == DOMAIN else None
    if write is None:
        return None
    body = _FunctionBuilder(node, types, values)
    write(body)
    outputs = [f"y{i}" for i in range(len(node.output))]
    imports = [helper.make_opsetid("", _OPSET)]
    return helper.make_function(DOMAIN, node.op_type, body.inputs, outputs, body.nodes, imports)


@final
@dataclass
class _FunctionBuilder:
    """Builds a function: inputs are x0, x1, ..., outputs y0, y1, ...; "" is an absent input."""

    node: Any
    types: Mapping[str, TensorType]
    values: Mapping[str, np.ndarray]
    nodes: list[Any] = field(default_factory=list)

    @property
    def inputs(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.node.input))]

    def input_name(self, i: int) -> str:
        """The name of input `i`, "" if it is absent."""
        return f"x{i}" if i < len(self.node.input) and self.node.input[i] else ""

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def with_attributes_of_node(self, *without: str) -> None:
        """Give the last node the attributes of the replaced node."""
        kept = [a for a in self.node.attribute if a.name not in without]
        self.nodes[-1].attribute.extend(kept)

    def integer(self, name: str, default: int) -> int:
        """An attribute of the replaced node."""
        return next((a.i for a in self.node.attribute if a.name == name), default)

    def real(self, i: int, axis: int = 1) -> str:
        """Dequantize input `i`, with its scale and zero point in inputs `i + 1` and `i + 2`: one for the
        tensor, or one for each position of `axis`.
        """
        names = [self.input_name(i), self.input_name(i + 1), self.input_name(i + 2)]
        return self.add("DequantizeLinear", names, axis=axis)

    def quantized(self, x: str, i: int) -> None:
        """Quantize the output, with scale and zero point in inputs `i` and `i + 1`."""
        self.add("QuantizeLinear", [x, self.input_name(i), self.input_name(i + 1)], "y0")


def _binary(op: str) -> Callable[[_FunctionBuilder], None]:
    def write(body: _FunctionBuilder) -> None:
        body.quantized(body.add(op, [body.real(0), body.real(3)]), 6)

    return write


def _unary(op: str) -> Callable[[_FunctionBuilder], None]:
    def write(body: _FunctionBuilder) -> None:
        y = body.add(op, [body.real(0)])
        body.with_attributes_of_node()
        body.quantized(y, 3)

    return write


def _pool(op: str) -> Callable[[_FunctionBuilder], None]:
    """`channels_last` has the channels in the last dimension."""

    def write(body: _FunctionBuilder) -> None:
        rank = len(body.types[body.node.input[0]].shape)
        x, is_last = body.real(0), body.integer("channels_last", 0)
        if is_last:
            x = body.add("Transpose", [x], perm=[0, rank - 1, *range(1, rank - 1)])
        y = body.add(op, [x])
        body.with_attributes_of_node("channels_last")
        if is_last:
            y = body.add("Transpose", [y], perm=[0, *range(2, rank), 1])
        body.quantized(y, 3)

    return write


def _softmax(body: _FunctionBuilder) -> None:
    """Before opset 13 it is over all dimensions from `axis` on."""
    x, axis = body.real(0), body.integer("axis", -1)
    if body.integer("opset", 13) >= 13:
        y = body.add("Softmax", [x], axis=axis)
    else:
        y = body.add("Softmax", [body.add("Flatten", [x], axis=axis)], axis=-1)
        y = body.add("Reshape", [y, body.add("Shape", [x])], allowzero=1)
    body.quantized(y, 3)


def _concat(body: _FunctionBuilder) -> None:
    parts = [body.real(i) for i in range(2, len(body.node.input), 3)]
    y = body.add("Concat", parts)
    body.with_attributes_of_node()
    body.quantized(y, 0)


def _where(body: _FunctionBuilder) -> None:
    body.quantized(body.add("Where", [body.input_name(0), body.real(1), body.real(4)]), 7)


def _gemm(body: _FunctionBuilder) -> None:
    """The bias is int32 in units of both scales, and `alpha` multiplies it too."""
    # Scales of the second matrix are for each column of the product.
    inputs = [body.real(0), body.real(3, axis=0 if body.integer("transB", 0) else 1)]
    alpha = next((a.f for a in body.node.attribute if a.name == "alpha"), 1.0)
    if body.input_name(6):
        scale = body.add("Mul", [body.input_name(1), body.input_name(4)])
        bias = body.add("Cast", [body.input_name(6)], to=1)
        bias = body.add("Mul", [bias, scale])
        if alpha != 1:
            bias = body.add("Mul", [bias, body.add("Constant", [], value_float=alpha)])
        inputs.append(bias)
    body.add("Gemm", inputs, "" if body.input_name(7) else "y0")
    body.with_attributes_of_node()
    if body.input_name(7):
        body.quantized(body.nodes[-1].output[0], 7)


def _same(op: str) -> Callable[[_FunctionBuilder], None]:
    def write(body: _FunctionBuilder) -> None:
        body.add(op, [body.input_name(i) for i in range(len(body.node.input))], "y0")
        body.with_attributes_of_node()

    return write


def _lstm(body: _FunctionBuilder) -> None:
    """Weights [direction][input][gate] of bytes, with scales and zero points per direction or per gate."""
    weights = [_lstm_weights(body, 1, 8), _lstm_weights(body, 2, 10)]
    rest = [body.input_name(i) for i in range(3, 8)]
    outputs = [f"y{i}" if y else "" for i, y in enumerate(body.node.output)]
    body.nodes.append(helper.make_node("LSTM", [body.input_name(0), *weights, *rest], outputs))
    body.with_attributes_of_node()


def _lstm_weights(body: _FunctionBuilder, w: int, scale: int) -> str:
    """Dequantized now if the bytes are known: they are packed as floats anyway."""
    names = [body.node.input[i] for i in (w, scale, scale + 1)]
    if all(name in body.values for name in names):
        codes, scales, zeros = (body.values[name].astype(np.float32) for name in names)
        to = (*scales.shape, 1, 1) if scales.ndim == 1 else (scales.shape[0], 1, -1)
        whole = (codes - zeros.reshape(to)) * scales.reshape(to)
        value = numpy_helper.from_array(np.ascontiguousarray(whole.transpose(0, 2, 1)))
        return body.add("Constant", [], value=value)
    axes = (1, 2) if len(body.types[names[1]].shape) == 1 else (1,)
    at = body.add("Constant", [], value_ints=axes)
    real = [body.add("Cast", [body.input_name(i)], to=1) for i in (w, scale + 1)]
    wide = [body.add("Unsqueeze", [x, at]) for x in (real[1], body.input_name(scale))]
    whole_name = body.add("Mul", [body.add("Sub", [real[0], wide[0]]), wide[1]])
    return body.add("Transpose", [whole_name], perm=[0, 2, 1])


_OPERATORS: Mapping[str, Callable[[_FunctionBuilder], None]] = {
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _pool("AveragePool"),
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "QuantizeLinear": _same("QuantizeLinear"),
    "DequantizeLinear": _same("DequantizeLinear"),
    "DynamicQuantizeLSTM": _lstm,
}

CONTRIB = frozenset(f"{DOMAIN}.{op}" for op in _OPERATORS)
"""The names of these operators in a graph."""
