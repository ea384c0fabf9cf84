"""Forms of operators whose tensors share a layout: element-wise operators, reductions, and moves.

An axis is mapped to its position in the layout; constants are permuted before the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import (
    GAP,
    gap_of,
    has_gap,
    identity,
    layout_of,
    order,
    permutation_between,
    physical_axis,
    physical_type,
    without_gap,
)
from pliant.compiler.layout.operator_family import (
    Layouts,
    NodeReplacement,
    OperatorFamily,
    tensors_in,
    tensors_out,
)
from pliant.compiler.rules.lower_reduce import FORMULAS as REDUCTIONS
from pliant.compiler.rules.lower_reduce import axes_of
from pliant.compiler.rules.move.lower_move import axis_of
from pliant.compiler.rules.onnx_elementwise import FORMULAS
from pliant.ir.graph import Attribute, Graph, Node
from pliant.ir.symbolic import size_array


def _rank(graph: Graph, tensor: str) -> int:
    return len(graph.types[tensor].shape)


def _same_layouts(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """The same layout for every tensor; scalars of another rank have none."""
    rank = len(without_gap(layout))
    found = {}
    for x in (*tensors_in(node, graph), *tensors_out(node)):
        if _rank(graph, x) == rank:
            found[x] = layout
        elif graph.types[x].size == 1 and x in node.inputs:
            found[x] = identity(_rank(graph, x))
        else:
            return None
    return found


def _map_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """The same layout for every tensor. The gaps are computed too, which is harmless only in float32."""
    found = _same_layouts(node, graph, tensor, layout)
    if found is None or not has_gap(layout):
        return found
    full = graph.types[tensors_out(node)[0]]
    is_whole = all(graph.types[x].shape == full.shape for x, like in found.items() if has_gap(like))
    is_float = all(graph.types[x].dtype == "float32" for x in (*node.inputs, *node.outputs) if x)
    return found if is_whole and is_float else None


def _elementwise(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    y = tensors_out(node)[0]
    constants = {}
    names = []
    for x in node.inputs:
        array = graph.constants.get(x)
        if array is None or array.size == 1:
            names.append(x)
            continue
        full = array.reshape((1,) * (_rank(graph, y) - array.ndim) + array.shape)
        name = f"{x}@{layouts[y]}"
        moved = full.transpose(order(layouts[y]))
        if moved.shape[-1] > 1:  # one more element per element of a gap
            gap = gap_of(graph.types[y], layouts[y])
            moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, gap)], mode="edge")
        constants[name] = np.ascontiguousarray(moved)
        names.append(name)
    return NodeReplacement((replace(node, inputs=tuple(names)),), constants)


def _along_axis(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    """Operators with an axis, whose constants do not depend on layouts."""
    y = tensors_out(node)[0]
    default = -1 if node.op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization") else 0
    axis = axis_of(node, _rank(graph, y), default)
    attributes = {**node.attributes, "axis": physical_axis(layouts[y], axis)}
    if node.op != "Concat":
        return NodeReplacement((replace(node, attributes=attributes),))
    moved = {x: f"{x}@{layouts[y]}" for x in node.inputs if x in graph.constants}
    constants = {
        name: np.ascontiguousarray(graph.constants[x].transpose(order(layouts[y])))
        for x, name in moved.items()
    }
    inputs = tuple(moved.get(x, x) for x in node.inputs)
    return NodeReplacement((replace(node, inputs=inputs, attributes=attributes),), constants)


def _norm(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """The normalised dimensions stay innermost."""
    x = node.inputs[0]
    axis = axis_of(node, _rank(graph, x), -1)
    plain = len(tensors_out(node)) == 1 and all(name in graph.constants for name in node.inputs[1:] if name)
    if not plain or layout[axis:] != identity(len(layout))[axis:]:
        return None
    return _same_layouts(node, graph, tensor, layout)


def _norm_gaps(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> Sequence[tuple[Layouts, str]]:
    """Rows read and written with or without gaps, for layer norms of float32 rows only."""
    x, y = node.inputs[0], node.outputs[0]
    layouts = [layout for layout in candidates.get(x, ()) if _norm(node, graph, x, without_gap(layout))]
    is_rows = graph.types[x].dtype == "float32" and axis_of(node, _rank(graph, x), -1) == _rank(graph, x) - 1
    if not is_rows or x in graph.constants or graph.types[x].size == 0:
        return ()
    if any(graph.types[name].size != graph.types[x].shape[-1] for name in node.inputs[1:] if name):
        return ()
    pairs = [(a, b) for a in layouts for b in candidates.get(y, ()) if without_gap(a) == without_gap(b)]
    return [({x: a, y: b}, "") for a, b in pairs if has_gap(a) or has_gap(b)]


def _realise_norm(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, y = node.inputs[0], node.outputs[0]
    if not (has_gap(layouts[x]) or has_gap(layouts[y])):
        return NodeReplacement((node,))
    type_ = graph.types[x]
    views: dict[str, Attribute] = {}
    for name, tensor in (("x_view", x), ("y_view", y)):
        shape = physical_type(type_, without_gap(layouts[tensor])).shape
        steps = physical_type(type_, layouts[tensor]).strides
        views[name] = (0, *shape, *steps)
    return NodeReplacement((replace(node, attributes={**node.attributes, **views}),))


def _unchanged(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    return NodeReplacement((node,))


def _reduce_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    x, y = node.inputs[0], node.outputs[0]
    if x in graph.constants:
        return None
    if node.flag("keepdims", True):
        return {x: layout, y: layout}
    if tensor != x:
        return None
    axes = axes_of(node, graph)
    kept = [d for d in range(len(layout)) if d not in axes]
    return {x: layout, y: layout_of([kept.index(d) for d in order(layout) if d in kept])}


def _reduce(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, y = node.inputs[0], node.outputs[0]
    name = f"{y}.axes@{layouts[x]}"
    axes = np.array(sorted(physical_axis(layouts[x], d) for d in axes_of(node, graph)), np.int64)
    attributes = {k: v for k, v in node.attributes.items() if k != "axes"}
    if axes.size == 0:
        return NodeReplacement((node,))
    return NodeReplacement((replace(node, inputs=(x, name), attributes=attributes),), {name: axes})


def _perm(node: Node, graph: Graph) -> tuple[int, ...]:
    rank = _rank(graph, node.inputs[0])
    perm = node.integers("perm", tuple(reversed(range(rank))))
    assert isinstance(perm, tuple), perm
    return tuple(int(d) for d in perm)


def _transpose_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """Layouts for which the transpose moves no data, including gaps."""
    x, y = node.inputs[0], node.outputs[0]
    perm = _perm(node, graph)
    gap = GAP if has_gap(layout) else ""
    if tensor == x:
        return {x: layout, y: layout_of([perm.index(d) for d in order(layout)]) + gap}
    return {x: layout_of([perm[d] for d in order(layout)]) + gap, y: layout}


def _transpose(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, y = node.inputs[0], node.outputs[0]
    perm = _perm(node, graph)
    wanted = layout_of([perm[d] for d in order(layouts[y])])
    return NodeReplacement((replace(node, attributes={"perm": permutation_between(layouts[x], wanted)}),))


def _reshape_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """Layouts in which joined or split dimensions stay adjacent, so that no data move."""
    x, y = node.inputs[0], node.outputs[0]
    if x in graph.constants:
        return None
    groups = _groups(graph.types[x].shape, graph.types[y].shape)
    if groups is None:
        return None
    mine, other = (0, 1) if tensor == x else (1, 0)
    dims, found = list(order(layout)), list[int]()
    while dims:
        group = next(g for g in groups if dims[0] in g[mine])
        n = len(group[mine])
        if tuple(dims[:n]) != group[mine]:
            return None
        found += group[other]
        dims = dims[n:]
    new = layout_of(found)
    return {x: layout, y: new} if tensor == x else {x: new, y: layout}


def _groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The smallest groups of adjacent dimensions of two shapes with equally many elements; None if there are
    none.
    """
    if 0 in a or not a or not b:
        return None
    ends_a, ends_b = (list(accumulate(shape, lambda n, m: n * m)) for shape in (a, b))
    groups = []
    i = j = 0
    while i < len(a) and j < len(b):
        first = (i, j)
        i, j = i + 1, j + 1
        while ends_a[i - 1] != ends_b[j - 1]:
            if ends_a[i - 1] < ends_b[j - 1]:
                i += 1
            else:
                j += 1
        if i == len(a) or j == len(b):
            i, j = len(a), len(b)  # trailing dimensions of 1 belong to the last group
        groups.append((tuple(range(first[0], i)), tuple(range(first[1], j))))
    return groups


def _reshape(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, y = node.inputs[0], node.outputs[0]
    name = f"{y}.shape@{layouts[y]}"
    shape = size_array(physical_type(graph.types[y], layouts[y]).shape)
    return NodeReplacement(
        (replace(node, op="Reshape", inputs=(x, name), attributes={"allowzero": 1}),), {name: shape}
    )


def _slice_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    x, y = node.inputs[0], node.outputs[0]
    known = all(name in graph.constants for name in node.inputs[1:] if name)
    return {x: layout, y: layout} if known and x not in graph.constants else None


def _slice(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, starts, ends, *rest = node.inputs
    given = graph.constants[rest[0]] if rest and rest[0] else np.arange(graph.constants[starts].size)
    rank, layout = _rank(graph, x), layouts[x]
    name = f"{node.outputs[0]}.axes@{layout}"
    axes = np.array([physical_axis(layout, int(d) % rank) for d in given.ravel()], np.int64)
    return NodeReplacement((replace(node, inputs=(x, starts, ends, name, *rest[1:])),), {name: axes})


def _pad_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    has_axes = len(node.inputs) > 3 and bool(node.inputs[3])
    if has_axes or (has_gap(layout) and not _pads_around_rows(node, graph, layout)):
        return None
    return _slice_follow(node, graph, tensor, layout)


def _pads_around_rows(node: Node, graph: Graph, layout: Layout) -> bool:
    """Whether the row length is unchanged, so that a gap after rows may stay."""
    pads = graph.constants.get(node.inputs[1])
    return pads is not None and not pads.reshape(2, -1)[:, order(layout)[-1]].any()


def _pad_gaps(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> Sequence[tuple[Layouts, str]]:
    """Forms that add or remove a gap after rows while copying them."""
    x, y = node.inputs[0], node.outputs[0]
    if node.text("mode", "constant") != "constant":
        return ()
    pairs = [
        (a, b)
        for a in candidates.get(x, ())
        for b in candidates.get(y, ())
        if without_gap(a) == without_gap(b)
    ]
    return [
        ({x: a, y: b}, "")
        for a, b in pairs
        if has_gap(a) != has_gap(b) and _pad_follow(node, graph, x, a) and _pad_follow(node, graph, y, b)
    ]


def _pad(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    x, pads, *rest = node.inputs
    y = node.outputs[0]
    by_axis = graph.constants[pads].reshape(2, -1)[:, order(layouts[x])]
    by_axis[1, -1] += gap_of(graph.types[y], layouts[y]) - gap_of(graph.types[x], layouts[x])
    name = f"{y}.pads@{layouts[x]}{layouts[y]}"
    return NodeReplacement((replace(node, inputs=(x, name, *rest)),), {name: by_axis.reshape(-1).copy()})


def _split_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    if node.inputs[0] in graph.constants or not all(node.outputs):
        return None
    return {node.inputs[0]: layout, **dict.fromkeys(node.outputs, layout)}


def _prefer_free(node: Node, graph: Graph) -> Mapping[str, tuple[Layout, ...]]:
    """The layouts that make a transpose from or to a row-major tensor free."""
    x, y = node.inputs[0], node.outputs[0]
    rank = identity(_rank(graph, x))
    behind, before = (_transpose_follow(node, graph, t, rank) for t in (x, y))
    assert behind is not None, node
    assert before is not None, node
    return {x: (before[x],), y: (behind[y],)}


_ALONG = OperatorFamily(_along_axis, _same_layouts)

FAMILIES: Mapping[str, OperatorFamily] = {
    **dict.fromkeys(FORMULAS, OperatorFamily(_elementwise, _map_follow, has_gap_forms=True)),
    **dict.fromkeys(REDUCTIONS, OperatorFamily(_reduce, _reduce_follow)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Concat"), _ALONG),
    "LayerNormalization": OperatorFamily(_realise_norm, _norm, _norm_gaps),
    "RMSNormalization": OperatorFamily(_unchanged, _norm),
    "Transpose": OperatorFamily(_transpose, _transpose_follow, preferred=_prefer_free, has_gap_forms=True),
    **dict.fromkeys(
        ("Reshape", "Squeeze", "Unsqueeze", "Flatten"), OperatorFamily(_reshape, _reshape_follow)
    ),
    "Slice": OperatorFamily(_slice, _slice_follow),
    "Pad": OperatorFamily(_pad, _pad_follow, _pad_gaps, has_gap_forms=True),
    "Split": OperatorFamily(_along_axis, _split_follow),
}
