"""Lower operators that read or write at integer indices: gather, scatter, reversed sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from pliant.compiler.executable.call import Call, Kernel, LoweredNode, Ref, RowExtent, Target
from pliant.compiler.rewrite.view import View, regular_steps, row_major, whole_view
from pliant.compiler.rules.move.copy_calls import (
    CopyLoop,
    collapse_loops,
    copy_calls,
    grain_of,
    nest_fields,
    split_inner_loops,
)
from pliant.compiler.rules.move.lower_move import axis_of, lower_view, require
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.move import index_gather, move, scatter

_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """`n_outer` times `n_rows` rows of `row_bytes`, located by tuples of integers of type `index` below
    `dims`.

    `strides` are those of the tuple's dimensions in the source, `outer_strides` those of source and indices,
    in bytes.
    """

    index: str
    n_outer: int
    n_rows: int
    row_bytes: int
    outer_strides: tuple[int, int]
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return self.n_outer * self.n_rows * self.row_bytes


def rows_along(shape: Sequence[int], axis: int, itemsize: int, index: str, n_rows: int) -> IndexedRows:
    """Rows of a dense tensor of `shape`, each located by one index along `axis`."""
    row_bytes = prod(shape[axis + 1 :]) * itemsize
    outer = shape[axis] * row_bytes, 0
    return IndexedRows(index, prod(shape[:axis]), n_rows, row_bytes, outer, (shape[axis],), (row_bytes,))


def gather_calls(node: Node, source: str, indices: str, made: str, rows: IndexedRows) -> tuple[Call, ...]:
    """Rows of `source` selected by `indices`, stored consecutively in `made`. Raises GraphError if it is
    empty.
    """
    n_units = rows.n_outer * rows.n_rows
    if n_units * rows.row_bytes == 0:
        return ()
    _check_not_empty(node, rows.dims)
    size = rows.row_bytes if rows.row_bytes in move.SIZES else None
    is_deep = len(rows.dims) != 1
    name = f"gather_{rows.index}_{size or 'rows'}{'_nd' * is_deep}"
    generate = partial(index_gather.gather_ir, name=name, index=rows.index, size=size, is_deep=is_deep)
    call = Call(
        kernel=Kernel(name, generate),
        layout=index_gather.GatherArgs,
        fields={
            "source": Ref(source),
            "indices": Ref(indices),
            "target": Ref(made),
            "n_rows": rows.n_rows,
            "row_bytes": rows.row_bytes,
            "source_outer": rows.outer_strides[0],
            "indices_outer": rows.outer_strides[1],
            "depth": len(rows.dims),
            "dims": _pad_depth(node, rows.dims),
            "strides": _pad_depth(node, rows.strides),
        },
        n_units=n_units,
        reads=(source, indices),
        writes=(made,),
        grain=grain_of(n_units, n_units * (rows.row_bytes + 16)),
        label=node.name,
    )
    return (call,)


def _gather(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, indices = node.inputs
    data, index_type = graph.types[x], graph.types[indices]
    axis = axis_of(node, len(data.shape))
    places = regular_steps(graph.constants.get(indices), data.shape[axis])
    if places is not None:
        return lower_view(node, whole_view(x, data).placed(axis, *places), graph)
    rows = rows_along(data.shape, axis, data.itemsize, index_dtype(node, index_type), index_type.size)
    require(graph.types[node.outputs[0]].n_bytes == rows.n_bytes, node, graph)
    return LoweredNode(calls=gather_calls(node, x, indices, node.outputs[0], rows))


def _take_rows(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """TakeRows(x, rows), inserted by passes only: rows of x [m, n, ...], viewed as [m * n, ...], by number.
    With the attribute `extent`, as many rows as all texts have together.
    """
    x, rows = node.inputs
    m, n, *rest = graph.types[x].shape
    type_, flat = graph.types[x], (m * n, *rest)
    which = rows_along(flat, 0, type_.itemsize, index_dtype(node, graph.types[rows]), m * n)
    (call,) = gather_calls(node, x, rows, node.outputs[0], which)
    if node.flag("extent"):
        call = replace(call, extent=RowExtent((), lambda lengths: (sum(lengths), call.grain)))
    return LoweredNode((call,))


def _gather_nd(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, indices = node.inputs
    data, index_type = graph.types[x], graph.types[indices]
    batch = axis_of(node, len(data.shape), 0, "batch_dims")
    depth = index_type.shape[-1]
    require(batch + depth <= len(data.shape) and data.shape[:batch] == index_type.shape[:batch], node, graph)
    n_rows = prod(index_type.shape[batch:-1])
    rows = IndexedRows(
        index=index_dtype(node, index_type),
        n_outer=prod(data.shape[:batch]),
        n_rows=n_rows,
        row_bytes=prod(data.shape[batch + depth :]) * data.itemsize,
        outer_strides=(prod(data.shape[batch:]) * data.itemsize, n_rows * depth * index_type.itemsize),
        dims=data.shape[batch : batch + depth],
        strides=tuple(s * data.itemsize for s in data.strides[batch : batch + depth]),
    )
    require(graph.types[node.outputs[0]].n_bytes == rows.n_bytes, node, graph)
    return LoweredNode(calls=gather_calls(node, x, indices, node.outputs[0], rows))


def _gather_elements(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, indices, y = node.inputs[0], node.inputs[1], node.outputs[0]
    data, result = graph.types[x], graph.types[y]
    axis = axis_of(node, len(data.shape))
    _check_within(node, graph, graph.types[indices].shape, axis)
    require(result.shape == graph.types[indices].shape, node, graph)
    if result.size == 0:
        return LoweredNode()
    _check_not_empty(node, (data.shape[axis],))
    kind, size = index_dtype(node, graph.types[indices]), data.itemsize
    strides = [0 if i == axis else s * size for i, s in enumerate(data.strides)]
    dims = [CopyLoop(n, s, t * size) for n, s, t in zip(result.shape, strides, result.strides, strict=True)]
    outer, m, n, block = split_inner_loops(node, collapse_loops(dims), size)
    name = f"pick_{kind}_{size}"
    n_units = prod(d.n for d in outer) * -(-m.n // block)
    call = Call(
        kernel=Kernel(name, partial(index_gather.gather_elements_ir, name=name, index=kind, size=size)),
        layout=index_gather.GatherElementsArgs,
        fields={
            "source": Ref(x),
            "indices": Ref(indices),
            "target": Ref(y),
            "dim": data.shape[axis],
            "axis_stride": data.strides[axis] * size,
            **nest_fields(outer, m, n, block),
        },
        n_units=n_units,
        reads=(x, indices),
        writes=(y,),
        grain=grain_of(n_units, result.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _scatter_elements(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, indices, updates = node.inputs
    y = node.outputs[0]
    data, update_type = graph.types[x], graph.types[updates]
    axis = axis_of(node, len(data.shape))
    _check_within(node, graph, graph.types[indices].shape, axis)
    require(update_type.shape == graph.types[indices].shape, node, graph)
    first = copy_calls(whole_view(x, data), whole_view(y, graph.types[y]), data.itemsize, node.name)
    if update_type.size == 0 or data.size == 0:
        return LoweredNode(calls=first)
    strides = tuple(0 if i == axis else s for i, s in enumerate(data.strides))
    places = View(y, 0, update_type.shape, strides)
    call = scatter_call(
        node,
        graph,
        (indices, updates),
        places,
        data.shape[axis],
        data.strides[axis],
        data.dtype,
        _reduction(node),
    )
    return LoweredNode(calls=(*first, call))


def scatter_call(
    node: Node,
    graph: Graph,
    sources: tuple[str, str],
    places: View,
    dim: int,
    stride: int,
    dtype: str,
    reduction: str = "none",
) -> Call:
    """Write each update at its element of `places` plus index times `stride` elements.

    `sources` are indices and updates, dense, of the shape of `places`; indices are below `dim`.
    """
    kind, size = index_dtype(node, graph.types[sources[0]]), graph.types[sources[1]].itemsize
    shape = places.shape
    dims = [
        CopyLoop(n, s * size, t * size)
        for n, s, t in zip(shape, row_major(shape), places.strides, strict=True)
    ]
    outer, m, n, block = split_inner_loops(node, collapse_loops(dims), size)
    row = _UNSIGNED[size] if reduction == "none" else dtype
    name = f"place_{reduction}_{kind}_{row}"
    n_units = prod(d.n for d in outer) * -(-m.n // block)
    return Call(
        kernel=Kernel(
            name, partial(scatter.scatter_elements_ir, name=name, index=kind, dtype=row, reduction=reduction)
        ),
        layout=scatter.ScatterElementsArgs,
        fields={
            "indices": Ref(sources[0]),
            "updates": Ref(sources[1]),
            "target": Ref(places.tensor, places.offset * size),
            "dim": dim,
            "axis_stride": stride * size,
            **nest_fields(outer, m, n, block),
        },
        n_units=n_units,
        reads=(*sources, places.tensor),
        writes=(places.tensor,),
        grain=n_units,
        label=node.name,
    )


def _scatter_nd(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, indices, updates = node.inputs
    y = node.outputs[0]
    data, index_type = graph.types[x], graph.types[indices]
    depth = index_type.shape[-1]
    require(graph.types[updates].shape == index_type.shape[:-1] + data.shape[depth:], node, graph)
    first = copy_calls(whole_view(x, data), whole_view(y, graph.types[y]), data.itemsize, node.name)
    n_rows, n = prod(index_type.shape[:-1]), prod(data.shape[depth:])
    if n_rows * n == 0 or data.size == 0:
        return LoweredNode(calls=first)
    kind, reduction = index_dtype(node, index_type), _reduction(node)
    dtype = _UNSIGNED[data.itemsize] if reduction == "none" else data.dtype
    name = f"scatter_{reduction}_{kind}_{dtype}"
    call = Call(
        kernel=Kernel(
            name, partial(scatter.scatter_ir, name=name, index=kind, dtype=dtype, reduction=reduction)
        ),
        layout=scatter.ScatterArgs,
        fields={
            "indices": Ref(indices),
            "updates": Ref(updates),
            "target": Ref(y),
            "n": n,
            "depth": depth,
            "dims": _pad_depth(node, data.shape[:depth]),
            "strides": _pad_depth(node, [s * data.itemsize for s in data.strides[:depth]]),
        },
        n_units=n_rows,
        reads=(indices, updates, y),
        writes=(y,),
        grain=n_rows,
        label=node.name,
    )
    return LoweredNode(calls=(*first, call))


def _reverse_sequence(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, lengths = node.inputs
    y, type_ = node.outputs[0], graph.types[x]
    time, batch = axis_of(node, 2, 0, "time_axis"), axis_of(node, 2, 1, "batch_axis")
    require(time != batch and graph.types[lengths].shape == (type_.shape[batch],), node, graph)
    if type_.size == 0:
        return LoweredNode()
    call = Call(
        kernel=Kernel("reverse_rows", partial(index_gather.reverse_ir, name="reverse_rows")),
        layout=index_gather.ReverseArgs,
        fields={
            "source": Ref(x),
            "lengths": Ref(lengths),
            "target": Ref(y),
            "time": type_.shape[time],
            "batch_stride": type_.strides[batch] * type_.itemsize,
            "time_stride": type_.strides[time] * type_.itemsize,
            "row_bytes": prod(type_.shape[2:]) * type_.itemsize,
        },
        n_units=type_.shape[batch],
        reads=(x, lengths),
        writes=(y,),
        grain=grain_of(type_.shape[batch], type_.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def index_dtype(node: Node, type_: TensorType) -> str:
    """The name of the indices' dtype. Raises GraphError for an unsupported one."""
    if type_.dtype not in index_gather.INDEX_TYPES:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has {type_.dtype} indices; they must be "
            f"{' or '.join(index_gather.INDEX_TYPES)}."
        )
    return type_.dtype


def _check_within(node: Node, graph: Graph, shape: tuple[int, ...], axis: int) -> None:
    """Check that indices of this shape stay within the first input in every dimension except `axis`."""
    data = graph.types[node.inputs[0]].shape
    is_within = all(i == axis or n <= m for i, (n, m) in enumerate(zip(shape, data, strict=False)))
    require(len(shape) == len(data) and is_within, node, graph)


def _check_not_empty(node: Node, dims: Sequence[int]) -> None:
    if 0 in dims:
        raise GraphError(f"node {node.name!r} ({node.op}) reads from a dimension of length 0.")


def _pad_depth(node: Node, values: Sequence[int]) -> tuple[int, ...]:
    if len(values) > index_gather.DEPTH:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has tuples of {len(values)} indices; kernels read "
            f"{index_gather.DEPTH}."
        )
    return (*values, *(0,) * (index_gather.DEPTH - len(values)))


def _reduction(node: Node) -> str:
    reduction = node.text("reduction", "none")
    if reduction not in scatter.REDUCTIONS:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has the reduction {reduction!r}; there are "
            f"{', '.join(scatter.REDUCTIONS)}."
        )
    return reduction


RULES: Mapping[str, Any] = {
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "ReverseSequence": _reverse_sequence,
}

PASS_RULES = {"TakeRows": _take_rows}
"""Rules for operators that only passes insert."""
