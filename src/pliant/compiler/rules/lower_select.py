"""Lower operators that select, mark or number elements: top k, one-hot, triangles, shape constants."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pliant.compiler.executable.call import (
    Call,
    Kernel,
    LoweredNode,
    PackedConstant,
    Ref,
    Target,
    TensorAlias,
)
from pliant.compiler.rewrite.view import View, whole_view
from pliant.compiler.rules.move.copy_calls import copy_calls, grain_of
from pliant.compiler.rules.move.lower_index import scatter_call
from pliant.compiler.rules.move.lower_move import axis_of, require, required_constant
from pliant.compiler.rules.move.lower_pad import fill_calls, frame_calls, zero_for
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.move import position_writes, triangle
from pliant.kernels.rows import topk


def _topk(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, type_ = node.inputs[0], graph.types[node.inputs[0]]
    values, indices = (*node.outputs, "")[:2]
    axis = axis_of(node, len(type_.shape), -1)
    k = graph.types[values or indices].shape[axis]
    require(k <= type_.shape[axis], node, graph)
    inner = prod(type_.shape[axis + 1 :])
    n_rows = prod(type_.shape[:axis]) * inner
    if n_rows * k == 0:
        return LoweredNode()
    name = f"topk_{type_.dtype}"
    call = Call(
        kernel=Kernel(name, partial(topk.topk_ir, name=name, dtype=type_.dtype)),
        layout=topk.TopKArgs,
        fields={
            "source": Ref(x),
            "values": Ref(values) if values else None,
            "indices": Ref(indices) if indices else None,
            "n": type_.shape[axis],
            "k": k,
            "inner": inner,
            "flip": 0 if node.integer("largest", 1) else -1,
        },
        n_units=n_rows,
        reads=(x,),
        writes=tuple(y for y in (values, indices) if y),
        grain=grain_of(n_rows, 8 * type_.n_bytes),
        scratch_bytes=topk.PAIR_BYTES * k,
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _one_hot(node: Node, graph: Graph, target: Target) -> LoweredNode:
    indices, _, values = node.inputs
    y = node.outputs[0]
    result, index_type = graph.types[y], graph.types[indices]
    axis = axis_of(node, len(result.shape), -1)
    outer = (*index_type.shape[:axis], result.shape[axis], *index_type.shape[axis:])
    require(outer == result.shape and graph.types[values].size == 2, node, graph)
    if result.size == 0:
        return LoweredNode()
    size = result.itemsize
    off = fill_calls(View(values, 0, (), ()), whole_view(y, result), size, node.name)
    name = f"one_hot_{index_type.dtype}_{size}"
    on = Call(
        kernel=Kernel(
            name, partial(position_writes.one_hot_ir, name=name, index=index_type.dtype, size=size)
        ),
        layout=position_writes.OneHotArgs,
        fields={
            "indices": Ref(indices),
            "value": Ref(values, size),
            "target": Ref(y),
            "depth": result.shape[axis],
            "inner": prod(result.shape[axis + 1 :]),
        },
        n_units=index_type.size,
        reads=(indices, values, y),
        writes=(y,),
        grain=grain_of(index_type.size, 64 * index_type.size),
        label=node.name,
    )
    return LoweredNode(calls=(*off, on))


def _trilu(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    k = node.inputs[1] if len(node.inputs) > 1 else ""
    type_ = graph.types[x]
    require(len(type_.shape) >= 2 and (not k or graph.types[k].size == 1), node, graph)
    if type_.size == 0:
        return LoweredNode()
    is_upper = node.flag("upper", True)
    name = "triangle_upper" if is_upper else "triangle_lower"
    n_rows = type_.size // type_.shape[-1]
    call = Call(
        kernel=Kernel(name, partial(triangle.triangle_ir, name=name, is_upper=is_upper)),
        layout=triangle.TriangleArgs,
        fields={
            "source": Ref(x),
            "target": Ref(y),
            "k": Ref(k) if k else None,
            "rows": type_.shape[-2],
            "columns": type_.shape[-1],
            "size": type_.itemsize,
        },
        n_units=n_rows,
        reads=(x, k) if k else (x,),
        writes=(y,),
        grain=grain_of(n_rows, type_.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _tensor_scatter(node: Node, graph: Graph, target: Target) -> LoweredNode:
    cache, updates, first = (*node.inputs, "")[:3]
    y = node.outputs[0]
    type_, update_type = graph.types[cache], graph.types[updates]
    axis = axis_of(node, len(type_.shape), -2)
    rows = (*type_.shape[:axis], update_type.shape[axis], *type_.shape[axis + 1 :])
    require(axis > 0 and update_type.shape == rows, node, graph)
    require(not first or graph.types[first].shape == type_.shape[:1], node, graph)
    copy = copy_calls(whole_view(cache, type_), whole_view(y, type_), type_.itemsize, node.name)
    if type_.size == 0 or update_type.size == 0:
        return LoweredNode(calls=copy)
    is_circular = node.text("mode", "linear") == "circular"
    name = "cache_circular" if is_circular else "cache_linear"
    n_units = prod(type_.shape[:axis])
    call = Call(
        kernel=Kernel(name, partial(position_writes.cache_ir, name=name, is_circular=is_circular)),
        layout=position_writes.CacheArgs,
        fields={
            "updates": Ref(updates),
            "first": Ref(first) if first else None,
            "target": Ref(y),
            "outer": prod(type_.shape[1:axis]),
            "length": type_.shape[axis],
            "n": update_type.shape[axis],
            "row_bytes": prod(type_.shape[axis + 1 :]) * type_.itemsize,
        },
        n_units=n_units,
        reads=(updates, first, y) if first else (updates, y),
        writes=(y,),
        grain=grain_of(n_units, update_type.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(*copy, call))


def _compress(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Compress with a constant condition: one slice for each run of kept positions."""
    x, y = node.inputs[0], node.outputs[0]
    condition = required_constant(node, graph, 1)
    type_ = graph.types[x]
    if "axis" in node.attributes:
        axis, source, result = (
            axis_of(node, len(type_.shape)),
            whole_view(x, type_),
            whole_view(y, graph.types[y]),
        )
    else:
        axis, source, result = 0, whole_view(x, type_, (type_.size,)), whole_view(y, graph.types[y])
    kept, length = np.flatnonzero(condition), source.shape[axis]
    if kept.size and kept[-1] >= length:
        raise GraphError(
            f"node {node.name!r} (Compress): the condition keeps position {kept[-1]} of {length}; give one "
            f"of at most {length} entries."
        )
    calls: list[Call] = []
    for run in np.split(kept, np.flatnonzero(np.diff(kept) != 1) + 1):
        if run.size:
            at = int(np.searchsorted(kept, run[0]))
            piece = result.sliced(axis, at, run.size)
            calls += copy_calls(source.sliced(axis, int(run[0]), run.size), piece, type_.itemsize, node.name)
    return LoweredNode(calls=tuple(calls))


def _max_unpool(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Values at flat indices of the unpooled shape, zeros elsewhere; a larger output shape adds a border of
    zeros.
    """
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    type_, result = graph.types[x], whole_view(y, graph.types[y])
    zero, packed = zero_for(node, graph)
    rank = len(type_.shape) - 2
    kernel = node.integers("kernel_shape", ())
    steps = node.integers("strides", (1,) * rank)
    cut = node.integers("pads", (0,) * (2 * rank))
    require(graph.types[indices].shape == type_.shape, node, graph)
    if (len(kernel), len(steps), len(cut)) != (rank, rank, 2 * rank):
        raise GraphError(
            f"node {node.name!r} (MaxUnpool): kernel_shape {kernel}, strides {steps} or pads {cut} do not "
            f"fit {rank} dimensions."
        )
    spatial = tuple(
        (n - 1) * steps[i] + kernel[i] - cut[i] - cut[i + rank] for i, n in enumerate(type_.shape[2:])
    )
    shape = (*type_.shape[:2], *spatial)
    is_framed = shape != result.shape
    require(all(0 < n <= m for n, m in zip(shape, result.shape, strict=True)), node, graph)
    name = f"{y}.unpooled" if is_framed else y
    n = prod(shape)
    flat = View(name, 0, (n,), (1,))
    calls = list(fill_calls(zero, flat, type_.itemsize, node.name))
    places = View(name, 0, (type_.size,), (0,))
    calls.append(scatter_call(node, graph, (indices, x), places, n, 1, type_.dtype))
    if is_framed:
        at = [0] * len(shape)
        kept = whole_view(name, TensorType(type_.dtype, shape))
        calls += frame_calls(kept, at, result, zero, type_.itemsize, node.name)
    return LoweredNode(
        calls=tuple(calls), packed=packed, temporaries={name: n * type_.itemsize} if is_framed else {}
    )


def _constant(node: Node, graph: Graph, value: np.ndarray) -> LoweredNode:
    y = node.outputs[0]
    type_ = graph.types[y]
    data = np.ascontiguousarray(np.broadcast_to(value, type_.shape), type_.numpy)
    name = f"{y}.value"

    def fill(memory: np.ndarray) -> None:
        memory[: data.nbytes] = data.reshape(-1).view(np.uint8)

    return LoweredNode(aliases=(TensorAlias(y, name),), packed={name: PackedConstant(data.nbytes, fill)})


def _eye_like(node: Node, graph: Graph, target: Target) -> LoweredNode:
    k = node.integer("k", 0)
    require(len(graph.types[node.outputs[0]].shape) == 2, node, graph)
    rows, columns = graph.types[node.outputs[0]].shape
    return _constant(node, graph, np.eye(rows, columns, k))


def _constant_of_shape(node: Node, graph: Graph, target: Target) -> LoweredNode:
    value = node.array("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise GraphError(f"node {node.name!r} (ConstantOfShape) has {value.size} values; give one.")
    return _constant(node, graph, value.reshape(-1))


def _shape(node: Node, graph: Graph, target: Target) -> LoweredNode:
    shape = graph.types[node.inputs[0]].shape
    start = node.integer("start", 0)
    end = node.integer("end", len(shape))
    return _constant(node, graph, np.array(shape[start:end], np.int64))


def _size(node: Node, graph: Graph, target: Target) -> LoweredNode:
    return _constant(node, graph, np.array(graph.types[node.inputs[0]].size))


def _range(node: Node, graph: Graph, target: Target) -> LoweredNode:
    start, delta = required_constant(node, graph, 0), required_constant(node, graph, 2)
    n = graph.types[node.outputs[0]].size
    return _constant(node, graph, start + np.arange(n).astype(start.dtype) * delta)


RULES: Mapping[str, Any] = {
    "TopK": _topk,
    "OneHot": _one_hot,
    "Trilu": _trilu,
    "TensorScatter": _tensor_scatter,
    "Compress": _compress,
    "MaxUnpool": _max_unpool,
    "EyeLike": _eye_like,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
}
