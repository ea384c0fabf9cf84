"""Lower quantization, and products of quantized tensors.

Two operators exist only in pliant: DynamicQuantizeRows(x) -> (q, scale, zero), ONNX's dynamic quantization of
x with q in the form that its products read, in no more memory than int16 rows of even length, and
QuantizedMatMul(q, scale, zero, w, w_scale, w_zero?, bias?, residual?) =
activation(scale * w_scale * ((q - zero) @ (w - w_zero)) + bias + residual).
"""

from functools import partial
from math import prod

import ml_dtypes
import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import whole_view
from pliant.compiler.rules.lower_elementwise import map_calls
from pliant.compiler.rules.lower_reduce import reduce_call
from pliant.compiler.rules.move.lower_move import axis_of
from pliant.compiler.rules.product.integer_product import (
    IntegerRows,
    IntegerWeights,
    are_constant,
    batched_product,
    integer_product,
    prepare_rows,
    product_form,
    row_parameter_shape,
)
from pliant.compiler.rules.product.product_calls import lower_contraction
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, numpy_type
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, choose, leaf
from pliant.kernels.product import quantize_rows
from pliant.kernels.product.matmul_args import COLUMNS
from pliant.kernels.product.matmul_integer import IntegerForm, byte_shift, choose_form
from pliant.kernels.product.quantize_rows import CHUNK, QuantizeRowsArgs, RangeArgs

_Shape = tuple[int, ...]


def _quantize(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, scale, zero = (*node.inputs, "")[:3]
    y = node.outputs[0]
    shape, steps = _blocks(node, graph.types[x].shape, graph.types[scale].shape)
    operands = [(x, shape), (scale, steps)]
    value = leaf(0, graph.types[x].dtype).cast("float32") / leaf(1, graph.types[scale].dtype).cast("float32")
    if DTYPES[graph.types[y].dtype].kind != "float":
        value = value.to("round")
    if zero:
        operands.append((zero, steps))
        value = value + leaf(2, graph.types[zero].dtype).cast("float32")
    return LoweredNode(map_calls(_saturate(value, graph.types[y].dtype), operands, (y, shape), node.label))


def _dequantize(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, scale, zero = (*node.inputs, "")[:3]
    y = node.outputs[0]
    shape, steps = _blocks(node, graph.types[x].shape, graph.types[scale].shape)
    operands = [(x, shape), (scale, steps)]
    value = leaf(0, graph.types[x].dtype).cast("float32")
    if zero:
        operands.append((zero, steps))
        value = value - leaf(2, graph.types[zero].dtype).cast("float32")
    value = value * leaf(1, graph.types[scale].dtype).cast("float32")
    return LoweredNode(map_calls(value.cast(graph.types[y].dtype), operands, (y, shape), node.label))


def _blocks(node: Node, shape: _Shape, scale: _Shape) -> tuple[_Shape, _Shape]:
    """Shapes of x and of the scale that broadcast to each other: per tensor, axis or block."""
    if prod(scale) == 1:
        return shape, ()
    axis, step = axis_of(node, len(shape), 1), node.integer("block_size", 0)
    if len(scale) == 1 and not (len(shape) == 1 and step):
        return shape, (*(1,) * axis, scale[0], *(1,) * (len(shape) - axis - 1))
    n = shape[axis]
    if not step or n % step:
        raise GraphError(f"node {node.label!r}: {n} elements of axis {axis} are not blocks of {step}.")
    before, after = shape[:axis], shape[axis + 1 :]
    return (*before, n // step, step, *after), (*before, n // step, 1, *after)


def _saturate(value: Expr, dtype: str) -> Expr:
    """`value` as the nearest number of `dtype`; a cast to integer bytes saturates already."""
    if DTYPES[dtype].kind != "float" and not DTYPES[dtype].is_packed:
        return value.cast(dtype)
    low, high = DTYPES[dtype].lowest, DTYPES[dtype].highest
    if DTYPES[dtype].kind == "float":
        limits = ml_dtypes.finfo(numpy_type(dtype))  # type: ignore[no-untyped-call]
        low, high = float(limits.min), float(limits.max)
    return value.with_("max", low).with_("min", high).cast(dtype)


def _dynamic(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x = node.inputs[0]
    shape = graph.types[x].shape
    label, real = node.label, leaf(0, "float32")
    names = [y or f"{label}.{i}" for i, y in enumerate((*node.outputs, "", "")[:3])]
    least, most = f"{names[0]}.least", f"{names[0]}.most"
    axes = tuple(range(len(shape)))
    calls = reduce_call((x, shape), axes, least, (real, "min", real.with_("min", 0.0)), label=label)
    calls += reduce_call((x, shape), axes, most, (real, "max", real.with_("max", 0.0)), label=label)
    span = (leaf(1, "float32") - real) / 255.0
    step = choose(span.compare("eq", 0.0), span.like(1.0), span)
    calls += map_calls(step, [(least, ()), (most, ())], (names[1], ()), label)
    point = _saturate((-(real / leaf(1, "float32"))).to("round"), "uint8")
    calls += map_calls(point, [(least, ()), (names[1], ())], (names[2], ()), label)
    value = (real / leaf(1, "float32")).to("round") + leaf(2, "uint8").cast("float32")
    operands = [(x, shape), (names[1], ()), (names[2], ())]
    calls += map_calls(_saturate(value, "uint8"), operands, (names[0], shape), label)
    sizes = {least: 4, most: 4, names[0]: prod(shape), names[1]: 4, names[2]: 1}
    return LoweredNode(calls, temporaries={x: n for x, n in sizes.items() if x not in node.outputs})


def _matmul_integer(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, b, a_zero, b_zero = (*node.inputs, "", "")[:4]
    return _integer_product(node, graph, target, (a, a_zero), (b, b_zero), node.outputs[0])


def _qlinear_matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    y, types = node.outputs[0], graph.types
    sums = f"{y}.sums"
    product = _integer_product(node, graph, target, (a, a_zero), (b, b_zero), sums)
    calls = requantize_calls(
        graph,
        leaf(0, "int32"),
        [(sums, types[y].shape)],
        (a_scale, b_scale, y_scale),
        y_zero,
        (y, types[y].shape, types[y].dtype),
        node.label,
    )
    temporaries = {**product.temporaries, sums: 4 * types[y].size}
    return LoweredNode((*product.calls, *calls), temporaries=temporaries, packed=product.packed)


def requantize_calls(
    graph: Graph,
    value: Expr,
    operands: list[tuple[str, _Shape]],
    scales: tuple[str, str, str],
    zero: str,
    out: tuple[str, _Shape, str],
    label: str,
) -> tuple[Call, ...]:
    """out (tensor, shape, dtype) = value * a's scale * b's / out's, rounded, shifted by `zero` and saturated.

    `value` is int32, an expression of `operands`.
    """
    a, b, y = (_parameter(graph, x, operands, i != 1) for i, x in enumerate(scales))
    real = (value.cast("float32") * (a * b / y)).to("round")
    if zero:
        real = real + _parameter(graph, zero, operands, True)
    return map_calls(_saturate(real, out[2]), operands, out[:2], label)


def _parameter(graph: Graph, x: str, operands: list[tuple[str, _Shape]], is_by_row: bool) -> Expr:
    """A scale or zero point as one more operand, in float32."""
    type_ = graph.types[x]
    operands.append((x, row_parameter_shape(type_.shape) if is_by_row else type_.shape))
    return leaf(len(operands) - 1, type_.dtype).cast("float32")


def _integer_product(
    node: Node, graph: Graph, target: Target, a: tuple[str, str], b: tuple[str, str], y: str
) -> LoweredNode:
    """y (int32) = (a - its zero point) @ (b - its zero point)."""
    left, right = graph.types[a[0]].shape, graph.types[b[0]].shape
    label = node.label
    is_plain = len(left) > 1 and len(right) > 1 and prod(right) == prod(right[-2:])
    if are_constant(graph, *b) and is_plain and 0 not in (*left, *right):
        weights = IntegerWeights(*b, right[-1])
        form = product_form(graph, target.isa, a[1], weights)
        rows, made = prepare_rows(graph, target.isa, form, a, f"{y}.a", label)
        product = integer_product(graph, target, form, rows, weights, y, label)
        return LoweredNode((*made.calls, *product.calls), temporaries=made.temporaries, packed=product.packed)
    made, views, type_ = batched_product(graph, a, b, y, label)
    contraction = lower_contraction(whole_view(y, type_), views, "int32", label=label)
    return LoweredNode((*made.calls, *contraction.calls), temporaries=made.temporaries)


def _quantize_rows(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, (q, scale, zero) = node.inputs[0], node.outputs
    shape = graph.types[x].shape
    n, rows, size = shape[-1], prod(shape[:-1]), prod(shape)
    form = IntegerForm.BYTES if _all_take_bytes(graph, target, q) else IntegerForm.WIDENED
    chunks = -(-size // CHUNK)
    ranges, label = f"{q}.ranges", node.label
    calls = (
        Call(
            Kernel(quantize_rows.RANGE, quantize_rows.value_range_ir),
            RangeArgs,
            {"x": Ref(x), "n": size, "ranges": Ref(ranges)},
            chunks,
            (x,),
            (ranges,),
            grain=4,
            label=label,
        ),
        Call(
            Kernel(
                quantize_rows.quantize_rows_name(form), partial(quantize_rows.quantize_rows_ir, form=form)
            ),
            QuantizeRowsArgs,
            {
                "x": Ref(x),
                "n": n,
                "q": Ref(q),
                "ld": form.words(n) * form.packing,
                "ranges": Ref(ranges),
                "n_ranges": chunks,
                "scale": Ref(scale),
                "zero": Ref(zero),
            },
            rows,
            (x, ranges),
            (q, scale, zero),
            grain=8,
            label=label,
        ),
    )
    return LoweredNode(calls, temporaries={ranges: 8 * chunks})


def _all_take_bytes(graph: Graph, target: Target, q: str) -> bool:
    """Whether every product of these rows is one of bytes: rows are quantized once, in one form."""
    readers = graph.consumers[q]
    return all(
        choose_form(target.isa, _weights(graph, node).fits_bytes(graph)) is IntegerForm.BYTES
        for node in readers
    )


def _weights(graph: Graph, node: Node) -> IntegerWeights:
    """The weights of a QuantizedMatMul."""
    w, zero = node.inputs[3], (*node.inputs, "", "")[5]
    return IntegerWeights(w, zero, graph.types[w].shape[-1])


def _quantized_matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q, scale, zero, w, w_scale, _, bias, residual = (*node.inputs, "", "", "")[:8]
    y = node.outputs[0]
    n = graph.types[w].shape[-1]
    activation = node.text("activation", "") or None
    steps, biases = f"{w_scale}|columns|{n}", f"{bias}|columns|{n}"
    values = {steps: graph.constants[w_scale]}
    values[biases] = graph.constants[bias] if bias else np.zeros(1, np.float32)
    floats: dict[str, FieldValue] = {
        "a_scale": Ref(scale),
        "b_scales": Ref(steps),
        "bias": Ref(biases),
        "residual": Ref(residual) if residual else None,
    }
    weights = _weights(graph, node)
    form = choose_form(target.isa, weights.fits_bytes(graph))
    if form is IntegerForm.BYTES and not _all_take_bytes(graph, target, q):
        form = IntegerForm.WIDENED
    rows = IntegerRows(q, prod(graph.types[q].shape[:-1]), zero, shift=byte_shift(target.isa, "uint8"))
    product = integer_product(graph, target, form, rows, weights, y, node.label, floats, activation)
    packed = {name: _columns(array, n) for name, array in values.items()}
    return LoweredNode(product.calls, packed={**product.packed, **packed})


def _columns(values: np.ndarray, n: int) -> PackedConstant:
    """A float for each column, or one for all, padded to whole column groups."""

    def fill(memory: np.ndarray) -> None:
        out = memory.view(np.float32)
        out[:n] = values.reshape(-1)
        out[n:] = 0.0

    return PackedConstant(4 * COLUMNS * -(-n // COLUMNS), fill)


RULES = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "DynamicQuantizeRows": _quantize_rows,
    "QuantizedMatMul": _quantized_matmul,
}
