"""Lower quantization, and products of quantized tensors. Knows ONNX's operators, no loop.

Two operators are pliant's own: DynamicQuantize16(x) -> (q, scale), ONNX's dynamic quantization of x less its
zero point, int16 with rows of even length, and QuantizedMatMul(q, scale, w, w_scale, w_zero?, bias?,
residual?) = activation(scale * w_scale * (q @ (w - w_zero)) + bias + residual).
"""

from functools import partial
from math import prod

import ml_dtypes
import numpy as np

from pliant.compile.call import Call, Field, Kernel, Lowered, Packed, Ref, Target
from pliant.compile.lower.elementwise import map_calls
from pliant.compile.lower.move import axis_of
from pliant.compile.lower.product import lower_contraction
from pliant.compile.lower.reduce import reduce_call
from pliant.compile.lower.window import integer, text
from pliant.compile.view import View, whole
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels import matmul_int16, quantize_rows16
from pliant.kernels.dtypes import DTYPES
from pliant.kernels.expression import Expr, choose, leaf
from pliant.kernels.matmul_args import COLUMNS
from pliant.kernels.matmul_int16 import MatmulInt16Args, pack_pairs
from pliant.kernels.quantize_rows16 import CHUNK, QuantizeInt16Args, RangeArgs

Shape = tuple[int, ...]


def _quantize(node: Node, graph: Graph, target: Target) -> Lowered:
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
    return Lowered(map_calls(_saturated(value, graph.types[y].dtype), operands, (y, shape), _label(node)))


def _dequantize(node: Node, graph: Graph, target: Target) -> Lowered:
    x, scale, zero = (*node.inputs, "")[:3]
    y = node.outputs[0]
    shape, steps = _blocks(node, graph.types[x].shape, graph.types[scale].shape)
    operands = [(x, shape), (scale, steps)]
    value = leaf(0, graph.types[x].dtype).cast("float32")
    if zero:
        operands.append((zero, steps))
        value = value - leaf(2, graph.types[zero].dtype).cast("float32")
    value = value * leaf(1, graph.types[scale].dtype).cast("float32")
    return Lowered(map_calls(value.cast(graph.types[y].dtype), operands, (y, shape), _label(node)))


def _blocks(node: Node, shape: Shape, scale: Shape) -> tuple[Shape, Shape]:
    """x's shape and the scale's, such that one broadcasts to the other: by tensor, axis or block."""
    if prod(scale) == 1:
        return shape, ()
    axis = axis_of(node, len(shape), 1)
    if len(scale) == 1:
        return shape, (*(1,) * axis, scale[0], *(1,) * (len(shape) - axis - 1))
    n, step = shape[axis], integer(node.attributes, "block_size", 0)
    if not step or n % step:
        raise GraphError(f"node {_label(node)!r}: {n} elements of axis {axis} are no blocks of {step}.")
    before, after = shape[:axis], shape[axis + 1 :]
    return (*before, n // step, step, *after), (*before, n // step, 1, *after)


def _saturated(value: Expr, dtype: str) -> Expr:
    low, high = DTYPES[dtype].lowest, DTYPES[dtype].highest
    if DTYPES[dtype].kind == "float":
        limits = ml_dtypes.finfo(TensorType(dtype, ()).numpy)  # type: ignore[no-untyped-call]
        low, high = float(limits.min), float(limits.max)
    return value.with_("max", low).with_("min", high).cast(dtype)


def _dynamic(node: Node, graph: Graph, target: Target) -> Lowered:
    x = node.inputs[0]
    shape = graph.types[x].shape
    label, real = _label(node), leaf(0, "float32")
    names = [y or f"{label}.{i}" for i, y in enumerate((*node.outputs, "", "")[:3])]
    least, most = f"{names[0]}.least", f"{names[0]}.most"
    axes = tuple(range(len(shape)))
    calls = reduce_call((x, shape), axes, least, (real, "min", real.with_("min", 0.0)), label=label)
    calls += reduce_call((x, shape), axes, most, (real, "max", real.with_("max", 0.0)), label=label)
    span = (leaf(1, "float32") - real) / 255.0
    step = choose(span.compare("eq", 0.0), span.like(1.0), span)
    calls += map_calls(step, [(least, ()), (most, ())], (names[1], ()), label)
    point = _saturated((-(real / leaf(1, "float32"))).to("round"), "uint8")
    calls += map_calls(point, [(least, ()), (names[1], ())], (names[2], ()), label)
    value = (real / leaf(1, "float32")).to("round") + leaf(2, "uint8").cast("float32")
    operands = [(x, shape), (names[1], ()), (names[2], ())]
    calls += map_calls(_saturated(value, "uint8"), operands, (names[0], shape), label)
    sizes = {least: 4, most: 4, names[0]: prod(shape), names[1]: 4, names[2]: 1}
    return Lowered(calls, temporaries={x: n for x, n in sizes.items() if x not in node.outputs})


def _matmul_integer(node: Node, graph: Graph, target: Target) -> Lowered:
    a, b, a_zero, b_zero = (*node.inputs, "", "")[:4]
    return _integer_product(node, graph, target, (a, a_zero), (b, b_zero), node.outputs[0])


def _qlinear_matmul(node: Node, graph: Graph, target: Target) -> Lowered:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    y, types = node.outputs[0], graph.types
    sums = f"{y}.sums"
    product = _integer_product(node, graph, target, (a, a_zero), (b, b_zero), sums)
    shape = types[y].shape
    scales = [leaf(i, types[x].dtype).cast("float32") for i, x in ((1, a_scale), (2, b_scale), (3, y_scale))]
    value = leaf(0, "int32").cast("float32") * (scales[0] * scales[1] / scales[2])
    value = value.to("round") + leaf(4, types[y_zero].dtype).cast("float32")
    operands = [
        (sums, shape),
        (a_scale, _by_row(types[a_scale].shape)),
        (b_scale, types[b_scale].shape),
        (y_scale, _by_row(types[y_scale].shape)),
        (y_zero, _by_row(types[y_zero].shape)),
    ]
    calls = map_calls(_saturated(value, types[y].dtype), operands, (y, shape), _label(node))
    temporaries = {**product.temporaries, sums: 4 * prod(shape)}
    return Lowered((*product.calls, *calls), temporaries=temporaries, packed=product.packed)


def _integer_product(
    node: Node, graph: Graph, target: Target, a: tuple[str, str], b: tuple[str, str], y: str
) -> Lowered:
    """y (int32) = (a - its zero point) @ (b - its zero point)."""
    left, right = graph.types[a[0]].shape, graph.types[b[0]].shape
    depth = left[-1]
    known = b[0] in graph.constants and (not b[1] or b[1] in graph.constants)
    is_plain = len(left) > 1 and prod(right) == prod(right[-2:]) and depth and not depth % 2
    label = _label(node)
    if known and is_plain and len(right) > 1 and 0 not in (*left, *right):
        calls = _less_zero(graph, a, f"{y}.a", "int16", True, label)
        rows = prod(left[:-1])
        product = _int16_call(graph, target, (f"{y}.a", rows), b, y, right[-1], depth // 2, label)
        return Lowered(
            (*calls, *product.calls), temporaries={f"{y}.a": 2 * prod(left)}, packed=product.packed
        )
    calls = _less_zero(graph, a, f"{y}.a", "int32", True, label)
    calls += _less_zero(graph, b, f"{y}.b", "int32", False, label)
    left, right = left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    shape = (*batch, left[-2], right[-1])
    p = whole(f"{y}.a", TensorType("int32", left)).broadcast((*batch, *left[-2:]))
    q = whole(f"{y}.b", TensorType("int32", right)).broadcast((*batch, *right[-2:]))
    views = (
        View(p.tensor, 0, (*shape, depth), (*p.strides[:-1], 0, p.strides[-1])),
        View(q.tensor, 0, (*shape, depth), (*q.strides[:-2], 0, q.strides[-1], q.strides[-2])),
    )
    product = lower_contraction(whole(y, TensorType("int32", shape)), views, "int32", label=label)
    temporaries = {f"{y}.a": 4 * prod(left), f"{y}.b": 4 * prod(right)}
    return Lowered((*calls, *product.calls), temporaries=temporaries)


def _less_zero(
    graph: Graph, x: tuple[str, str], y: str, dtype: str, by_row: bool, label: str
) -> tuple[Call, ...]:
    """y = x less its zero point, which is one number or one a row, or column."""
    name, zero = x
    type_ = graph.types[name]
    value, operands = leaf(0, type_.dtype).cast(dtype), [(name, type_.shape)]
    if zero:
        shape = graph.types[zero].shape
        operands.append((zero, _by_row(shape) if by_row else () if prod(shape) == 1 else shape))
        value = value - leaf(1, graph.types[zero].dtype).cast(dtype)
    return map_calls(value, operands, (y, type_.shape), label)


def _by_row(shape: Shape) -> Shape:
    """A scale or zero point of A: one number, or one a row."""
    if prod(shape) == 1:
        return ()
    return (*shape, 1) if len(shape) == 1 else shape


def _int16_call(
    graph: Graph,
    target: Target,
    a: tuple[str, int],
    b: tuple[str, str],
    y: str,
    n_columns: int,
    pairs: int,
    label: str,
    floats: dict[str, Field] | None = None,
    activation: str | None = None,
) -> Lowered:
    """The product of int16 rows with a constant; `floats` are what makes a float32 result of it."""
    values = graph.constants[b[0]]
    zero = graph.constants[b[1]].reshape(-1) if b[1] else np.zeros(1, np.int16)
    groups = -(-n_columns // COLUMNS)
    name = f"{b[0]}|pairs|{b[1]}"

    def fill(memory: np.ndarray) -> None:
        matrix = values.reshape(-1, n_columns).astype(np.int16) - zero.astype(np.int16)
        pack_pairs(matrix, memory.view(np.int16).reshape(groups, pairs, COLUMNS, 2))

    panel = max(1, min(12, groups // (4 * target.n_threads))) if target.n_threads > 1 else groups
    extra = floats or {}
    refs = [f.tensor for f in extra.values() if isinstance(f, Ref)]
    is_float = floats is not None
    call = Call(
        Kernel(
            matmul_int16.matmul_int16_name(is_float, activation),
            partial(matmul_int16.matmul_int16_ir, is_float=is_float, activation=activation),
        ),
        MatmulInt16Args,
        {
            "a": Ref(a[0]),
            "b": Ref(name),
            "c": Ref(y),
            "n_rows": a[1],
            "n_columns": n_columns,
            "pairs": pairs,
            "panel": panel,
            **extra,
        },
        matmul_int16.units(a[1], n_columns, panel),
        tuple(dict.fromkeys((a[0], name, *refs))),
        (y,),
        scratch_bytes=matmul_int16.scratch_bytes(),
        label=label,
    )
    return Lowered((call,), packed={name: Packed(4 * groups * pairs * COLUMNS, fill, b[0])})


def _quantize16(node: Node, graph: Graph, target: Target) -> Lowered:
    x, (q, scale) = node.inputs[0], node.outputs
    shape = graph.types[x].shape
    n, rows, size = shape[-1], prod(shape[:-1]), prod(shape)
    chunks = -(-size // CHUNK)
    ranges, label = f"{q}.ranges", _label(node)
    calls = (
        Call(
            Kernel(quantize_rows16.RANGE, quantize_rows16.value_range_ir),
            RangeArgs,
            {"x": Ref(x), "n": size, "ranges": Ref(ranges)},
            chunks,
            (x,),
            (ranges,),
            grain=4,
            label=label,
        ),
        Call(
            Kernel(quantize_rows16.QUANTIZE, quantize_rows16.quantize_int16_ir),
            QuantizeInt16Args,
            {
                "x": Ref(x),
                "n": n,
                "q": Ref(q),
                "ld": graph.types[q].shape[-1],
                "ranges": Ref(ranges),
                "n_ranges": chunks,
                "scale": Ref(scale),
            },
            rows,
            (x, ranges),
            (q, scale),
            grain=8,
            label=label,
        ),
    )
    return Lowered(calls, temporaries={ranges: 8 * chunks})


def _quantized_matmul(node: Node, graph: Graph, target: Target) -> Lowered:
    q, scale, w, w_scale, w_zero, bias, residual = (*node.inputs, "", "", "")[:7]
    y = node.outputs[0]
    *lead, columns = graph.types[q].shape
    n = graph.types[w].shape[-1]
    activation = text(node.attributes, "activation", "") or None
    steps, biases = f"{w_scale}|columns|{n}", f"{bias}|columns|{n}"
    values = {steps: graph.constants[w_scale]}
    values[biases] = graph.constants[bias] if bias else np.zeros(1, np.float32)
    floats: dict[str, Field] = {
        "a_scale": Ref(scale),
        "b_scales": Ref(steps),
        "bias": Ref(biases),
        "residual": Ref(residual) if residual else None,
    }
    product = _int16_call(
        graph, target, (q, prod(lead)), (w, w_zero), y, n, columns // 2, _label(node), floats, activation
    )
    packed = {name: _columns(array, n) for name, array in values.items()}
    return Lowered(product.calls, packed={**product.packed, **packed})


def _columns(values: np.ndarray, n: int) -> Packed:
    """A float for each column, or one for all, as far as column groups go."""

    def fill(memory: np.ndarray) -> None:
        out = memory.view(np.float32)
        out[:n] = values.reshape(-1)
        out[n:] = 0.0

    return Packed(4 * COLUMNS * -(-n // COLUMNS), fill)


def _label(node: Node) -> str:
    return node.name or node.op


RULES = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "DynamicQuantize16": _quantize16,
    "QuantizedMatMul": _quantized_matmul,
}
