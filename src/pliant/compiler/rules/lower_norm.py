"""Lower softmax and the normalisations.

float32 rows use specialised kernels, through `x_view` and `y_view` [..., row, column] if a schedule sets them
(see compile.view); all else is lowered to reductions and maps, in float32 for half floats and in the tensor's
own precision otherwise.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import input_view
from pliant.compiler.rules.lower_elementwise import map_calls
from pliant.compiler.rules.lower_extremum import extremum_call
from pliant.compiler.rules.lower_reduce import accumulator_dtype, reduce_call
from pliant.compiler.rules.move.lower_move import axis_of
from pliant.compiler.rules.row_calls import grain, layer_norm_call
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, choose, constant, leaf
from pliant.kernels.rows import lrn, rms_norm, rowwise

_Shape = tuple[int, ...]


def softmax_rows(x: str, out: str, shape: Sequence[int], label: str = "") -> tuple[Call, ...]:
    """out = softmax of x along the last axis, float32."""
    n, rows = shape[-1], prod(shape[:-1])
    if n * rows == 0:
        return ()
    kernel = Kernel(rowwise.SOFTMAX, rowwise.softmax_ir)
    fields: dict[str, FieldValue] = {"x": Ref(x), "ld_x": n, "out": Ref(out), "ld_out": n, "n": n}
    return (Call(kernel, rowwise.RowArgs, fields, rows, (x,), (out,), grain(n), label=label),)


def _softmax(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_ = graph.types[x]
    axis = axis_of(node, max(len(type_.shape), 1), -1)
    is_log = node.op == "LogSoftmax"
    is_last = prod(type_.shape[axis + 1 :]) == 1
    if is_last and not is_log and type_.dtype == "float32":
        flat = (prod(type_.shape[:axis]), type_.shape[axis])
        return LoweredNode(softmax_rows(x, y, flat, node.name))
    wide, shape = accumulator_dtype(type_.dtype), type_.shape
    element, top, total = leaf(0, type_.dtype).cast(wide), leaf(1, wide), leaf(2, wide)
    largest = (element, "max", leaf(0, wide))
    calls = reduce_call((x, shape), (axis,), f"{y}@max", largest, label=node.name)
    terms = ((element - top).to("exp"), "add", leaf(0, wide).to("ln") if is_log else leaf(0, wide))
    calls += reduce_call((x, shape), (axis,), f"{y}@sum", terms, f"{y}@max", node.name)
    answer = element - top - total if is_log else (element - top).to("exp") / total
    kept = _keep_dims(shape, (axis,))
    operands = [(x, shape), (f"{y}@max", kept), (f"{y}@sum", kept)]
    calls += map_calls(answer.cast(type_.dtype), operands, (y, shape), node.name)
    n_bytes = prod(kept) * DTYPES[wide].itemsize
    return LoweredNode(calls, temporaries={f"{y}@max": n_bytes, f"{y}@sum": n_bytes})


def _hardmax(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """1 at the first maximum, 0 elsewhere."""
    x, y = node.inputs[0], node.outputs[0]
    type_ = graph.types[x]
    axis = axis_of(node, len(type_.shape), -1)
    shape, kept, place, count = type_.shape, _keep_dims(type_.shape, (axis,)), f"{y}@place", f"{y}@count"
    if prod(shape) == 0:
        return LoweredNode()
    calls = extremum_call(
        (x, shape, type_.dtype), axis, place, is_largest=True, is_last=False, label=node.name
    )
    tree = leaf(0, "int64").compare("eq", leaf(1, "int64")).cast(type_.dtype)
    along = tuple(n if d == axis else 1 for d, n in enumerate(shape))
    calls += map_calls(tree, [(place, kept), (count, along)], (y, shape), node.name)
    numbers_ = np.arange(shape[axis], dtype=np.int64)
    return LoweredNode(calls, temporaries={place: prod(kept) * 8}, packed={count: _pack(numbers_)})


def _layer_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_ = graph.types[x]
    if "x_view" in node.attributes:
        return _layer_norm_rows(node, graph, input_view(graph, x, node.integers("x_view")).shape[-1])
    axis = axis_of(node, len(type_.shape), -1)
    n = prod(type_.shape[axis:])
    affine = [name for name in node.inputs[1:3] if name]
    is_plain = type_.dtype == "float32" and not any(node.outputs[1:])
    if is_plain and n and all(_covers(graph.types[a], type_.shape[axis:]) for a in affine):
        return _layer_norm_rows(node, graph, n)
    wide = accumulator_dtype(type_.dtype)
    axes = tuple(range(axis, len(type_.shape)))
    mean, scale = ((*node.outputs, "", "")[i] or f"{y}@{i}" for i in (1, 2))
    kept = _keep_dims(type_.shape, axes)
    temporaries = {t: prod(kept) * DTYPES[wide].itemsize for t in (mean, scale) if t not in node.outputs}
    stash = {t: graph.types[t].dtype if t in graph.types else wide for t in (mean, scale)}
    element = leaf(0, type_.dtype).cast(wide)
    average = leaf(0, wide) / leaf(2, "int64").cast(wide)
    calls = reduce_call((x, type_.shape), axes, mean, (element, "add", average.cast(stash[mean])))
    centred = element - leaf(1, stash[mean]).cast(wide)
    inverse = constant(1, wide) / (average + node.real("epsilon", 1e-5)).to("sqrt")
    terms = (centred * centred, "add", inverse.cast(stash[scale]))
    calls += reduce_call((x, type_.shape), axes, scale, terms, mean)
    tree = centred * leaf(2, stash[scale]).cast(wide)
    operands = [(x, type_.shape), (mean, kept), (scale, kept)]
    calls += _affine(tree, operands, affine, graph, y)
    return LoweredNode(calls, temporaries=temporaries)


def _layer_norm_rows(node: Node, graph: Graph, n: int) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else f"{y}@bias"
    packed = {} if bias in node.inputs else {bias: _pack(np.zeros(n, np.float32))}
    epsilon = node.real("epsilon", 1e-5)
    steps = {"ld_x": n, "ld_out": n}
    if "x_view" in node.attributes:
        views = (input_view(graph, t, node.integers(f"{v}_view")) for v, t in (("x", x), ("y", y)))
        steps = dict(zip(steps, (view.strides[-2] for view in views), strict=True))
    rows = graph.types[x].size // (steps["ld_x"] or 1)
    call = layer_norm_call(
        x, y, (node.inputs[1], bias), (rows, n), n, epsilon, node.name,
        has_extent=node.flag("extent"),
    )  # fmt: skip
    call = replace(call, fields={**call.fields, **steps})
    return LoweredNode((call,) if rows else (), packed=packed)


def _rms_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_ = graph.types[x]
    wide, axis = accumulator_dtype(type_.dtype), axis_of(node, len(type_.shape), -1)
    n, epsilon = prod(type_.shape[axis:]), node.real("epsilon", 1e-5)
    if type_.dtype == "float32" and n and _covers(graph.types[node.inputs[1]], type_.shape[axis:]):
        return _rms_norm_rows(node, graph, n, epsilon)
    axes = tuple(range(axis, len(type_.shape)))
    element, kept = leaf(0, type_.dtype).cast(wide), _keep_dims(type_.shape, axes)
    average = leaf(0, wide) / leaf(2, "int64").cast(wide)
    inverse = constant(1, wide) / (average + epsilon).to("sqrt")
    calls = reduce_call((x, type_.shape), axes, f"{y}@scale", (element * element, "add", inverse))
    operands = [(x, type_.shape), (f"{y}@scale", kept)]
    calls += _affine(element * leaf(1, wide), operands, node.inputs[1:2], graph, y)
    return LoweredNode(calls, temporaries={f"{y}@scale": prod(kept) * DTYPES[wide].itemsize})


def _rms_norm_rows(node: Node, graph: Graph, n: int, epsilon: float) -> LoweredNode:
    x, weight, y = node.inputs[0], node.inputs[1], node.outputs[0]
    rows = graph.types[x].size // n
    fields: dict[str, FieldValue] = {
        "x": Ref(x),
        "out": Ref(y),
        "weight": Ref(weight),
        "n": n,
        "eps": epsilon,
    }
    kernel = Kernel(rms_norm.RMS_NORM, rms_norm.rms_norm_ir)
    reads = (x, weight)
    call = Call(kernel, rms_norm.RmsNormArgs, fields, rows, reads, (y,), grain(n), label=node.name)
    return LoweredNode((call,) if rows else ())


def _affine(
    tree: Expr, operands: list[tuple[str, _Shape]], affine: Sequence[str], graph: Graph, y: str
) -> tuple[Call, ...]:
    """tree * scale + bias; scale and bias may be absent."""
    operands = list(operands)
    for op, name in zip(("mul", "add"), affine, strict=False):
        tree = tree.with_(op, leaf(len(operands), graph.types[name].dtype).cast(tree.dtype))
        operands.append((name, graph.types[name].shape))
    return map_calls(tree.cast(graph.types[y].dtype), operands, (y, graph.types[y].shape), y)


def _batch_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    if node.flag("training_mode") or len([y for y in node.outputs if y]) > 1:
        raise GraphError(
            f"node {node.name!r} (BatchNormalization) is in training mode; export for inference."
        )
    x, scale, bias, mean, variance = node.inputs
    y, type_ = node.outputs[0], graph.types[node.inputs[0]]
    wide = accumulator_dtype(type_.dtype)
    channels = type_.shape[1] if len(type_.shape) > 1 else 1
    factor = f"{y}@factor"
    leaves = [leaf(i, graph.types[name].dtype).cast(wide) for i, name in enumerate((scale, variance))]
    tree = leaves[0] / (leaves[1] + node.real("epsilon", 1e-5)).to("sqrt")
    calls = map_calls(tree, [(scale, (channels,)), (variance, (channels,))], (factor, (channels,)))
    along = (channels, *(1 for _ in type_.shape[2:]))
    element, centre = leaf(0, type_.dtype).cast(wide), leaf(1, graph.types[mean].dtype).cast(wide)
    tree = (element - centre) * leaf(2, wide) + leaf(3, graph.types[bias].dtype).cast(wide)
    operands = [(x, type_.shape), (mean, along), (factor, along), (bias, along)]
    calls += map_calls(tree.cast(type_.dtype), operands, (y, type_.shape), node.name)
    return LoweredNode(calls, temporaries={factor: channels * DTYPES[wide].itemsize})


def _group_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Group norm, or instance norm, which has one group per channel."""
    x, scale, bias = node.inputs
    y, type_ = node.outputs[0], graph.types[node.inputs[0]]
    batch, channels, *rest = type_.shape
    groups = node.integer("num_groups", channels)
    shape = (batch, groups, channels // groups, prod(rest))
    wide = accumulator_dtype(type_.dtype)
    calls, temporaries = _moments((x, shape), type_.dtype, (2, 3), y, node.real("epsilon", 1e-5))
    along, kept = (groups, channels // groups, 1), (batch, groups, 1, 1)
    tree = (leaf(0, type_.dtype).cast(wide) - leaf(1, wide)) * leaf(2, wide)
    tree = tree * leaf(3, graph.types[scale].dtype).cast(wide) + leaf(4, graph.types[bias].dtype).cast(wide)
    operands = [(x, shape), (f"{y}@mean", kept), (f"{y}@scale", kept), (scale, along), (bias, along)]
    calls += map_calls(tree.cast(type_.dtype), operands, (y, shape), node.name)
    return LoweredNode(calls, temporaries=temporaries)


def _moments(
    x: tuple[str, _Shape], dtype: str, axes: _Shape, y: str, epsilon: float
) -> tuple[tuple[Call, ...], dict[str, int]]:
    """`y@mean` and `y@scale` = 1 / sqrt(variance + epsilon), from centred values."""
    wide, kept = accumulator_dtype(dtype), _keep_dims(x[1], axes)
    element, average = leaf(0, dtype).cast(wide), leaf(0, wide) / leaf(2, "int64").cast(wide)
    centred = element - leaf(1, wide)
    inverse = constant(1, wide) / (average + epsilon).to("sqrt")
    calls = reduce_call(x, axes, f"{y}@mean", (element, "add", average))
    calls += reduce_call(x, axes, f"{y}@scale", (centred * centred, "add", inverse), f"{y}@mean")
    n_bytes = prod(kept) * DTYPES[wide].itemsize
    return calls, {f"{y}@mean": n_bytes, f"{y}@scale": n_bytes}


def _mean_variance(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_, wide = graph.types[x], accumulator_dtype(graph.types[x].dtype)
    rank = len(type_.shape)
    axes = tuple(a % rank for a in node.integers("axes", (0, 2, 3)))
    calls, temporaries = _moments((x, type_.shape), type_.dtype, axes, y, 0.0)
    kept = _keep_dims(type_.shape, axes)
    # ONNX divides by deviation + 1e-9.
    tree = (leaf(0, type_.dtype).cast(wide) - leaf(1, wide)) / (constant(1, wide) / leaf(2, wide) + 1e-9)
    operands = [(x, type_.shape), (f"{y}@mean", kept), (f"{y}@scale", kept)]
    calls += map_calls(tree.cast(type_.dtype), operands, (y, type_.shape), node.name)
    return LoweredNode(calls, temporaries=temporaries)


def _lp_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_, wide = graph.types[x], accumulator_dtype(graph.types[x].dtype)
    axis = axis_of(node, len(type_.shape), -1)
    given, total = leaf(0, type_.dtype).cast(wide), leaf(0, wide)
    absolute, square = (given.to("abs"), "add", total), (given * given, "add", total.to("sqrt"))
    terms = absolute if node.integer("p", 2) == 1 else square
    calls = reduce_call((x, type_.shape), (axis,), f"{y}@norm", terms, label=node.name)
    norm, kept = leaf(1, wide), _keep_dims(type_.shape, (axis,))
    tree = choose(norm.compare("eq", 0), norm.like(0), given / norm)
    operands = [(x, type_.shape), (f"{y}@norm", kept)]
    calls += map_calls(tree.cast(type_.dtype), operands, (y, type_.shape), node.name)
    return LoweredNode(calls, temporaries={f"{y}@norm": prod(kept) * DTYPES[wide].itemsize})


def _lrn(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_, size = graph.types[x], node.integer("size", 1)
    if type_.dtype != "float32":
        raise GraphError(f"node {node.name!r} (LRN) is of {type_.dtype}; only float32 is supported.")
    batch, channels, *rest = type_.shape
    fields: dict[str, FieldValue] = {
        **{"x": Ref(x), "out": Ref(y), "channels": channels, "inner": prod(rest)},
        **{"before": (size - 1) // 2, "after": size // 2, "bias": node.real("bias", 1.0)},
        "share": node.real("alpha", 1e-4) / size,
        "beta": node.real("beta", 0.75),
    }
    n_units = batch * channels if prod(rest) else 0
    call = Call(Kernel(lrn.LRN, lrn.lrn_ir), lrn.LrnArgs, fields, n_units, (x,), (y,), label=node.name)
    return LoweredNode((call,))


def _keep_dims(shape: Sequence[int], axes: Sequence[int]) -> _Shape:
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def _covers(type_: TensorType, shape: Sequence[int]) -> bool:
    """Whether a scale or bias has its own value for every normalised element."""
    return type_.dtype == "float32" and type_.size == prod(shape)


def _pack(values: np.ndarray) -> PackedConstant:
    return PackedConstant(values.nbytes, partial(_fill, values))


def _fill(values: np.ndarray, memory: np.ndarray) -> None:
    memory[: values.nbytes] = values.view(np.uint8)


RULES = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _hardmax,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _group_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_norm,
    "LRN": _lrn,
}
