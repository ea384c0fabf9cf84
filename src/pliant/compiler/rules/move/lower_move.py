"""Lower operators that only move data: transpose, slice, concatenate, split, broadcast, tile, depth.

Each becomes a view of its input: an alias if the view is dense, else a copy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pliant.compiler.executable.call import Call, LoweredNode, Target, TensorAlias
from pliant.compiler.rewrite.view import View, whole_view
from pliant.compiler.rules.move.copy_calls import copy_calls
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node


def lower_view(node: Node, source: View, graph: Graph, output: int = 0) -> LoweredNode:
    """Output number `output` as a view of a tensor: an alias if it is dense, else a copy."""
    name = node.outputs[output]
    if not name:
        return LoweredNode()
    size = graph.types[name].itemsize
    if source.is_dense:
        return LoweredNode(aliases=(TensorAlias(name, source.tensor, source.offset * size),))
    return LoweredNode(
        calls=copy_calls(source, whole_view(name, graph.types[name], source.shape), size, node.name)
    )


def concatenate_lowered(parts: Sequence[LoweredNode]) -> LoweredNode:
    """Several lowerings concatenated, in order."""
    return LoweredNode(
        calls=tuple(c for p in parts for c in p.calls),
        aliases=tuple(a for p in parts for a in p.aliases),
        temporaries={k: v for p in parts for k, v in p.temporaries.items()},
        packed={k: v for p in parts for k, v in p.packed.items()},
    )


def optional_constant(node: Node, graph: Graph, i: int) -> np.ndarray | None:
    """Input number `i`, which must be a constant; None if it is absent.

    Raises GraphError if the value is known only at run time.
    """
    if i >= len(node.inputs) or not node.inputs[i]:
        return None
    value = graph.constants.get(node.inputs[i])
    if value is None:
        raise GraphError(
            f"node {node.name!r} ({node.op}) needs its input {node.inputs[i]!r} before the run, because a "
            "shape depends on it; make it an initializer of the model."
        )
    return value


def required_constant(node: Node, graph: Graph, i: int) -> np.ndarray:
    """As `optional_constant`, for a required input. Raises GraphError if it is absent."""
    value = optional_constant(node, graph, i)
    if value is None:
        raise GraphError(f"node {node.name!r} ({node.op}) lacks input {i}.")
    return value


def require(is_fitting: bool, node: Node, graph: Graph) -> None:
    """Raise GraphError unless `is_fitting`: with mismatched shapes a kernel would read or write out of
    bounds.
    """
    if not is_fitting:
        shown = ", ".join(f"{x}: {graph.types[x]}" for x in (*node.inputs, *node.outputs) if x)
        raise GraphError(f"node {node.name!r} ({node.op}) cannot do with these shapes: {shown}.")


def axis_of(node: Node, rank: int, default: int = 0, name: str = "axis") -> int:
    """An axis attribute, counted from the front. Raises GraphError for an axis outside of `rank`."""
    axis = node.integer(name, default)
    room = max(rank, 1)  # a scalar has the axes of a vector
    if not -room <= axis < room:
        raise GraphError(f"node {node.name!r} ({node.op}) has the {name} {axis}, but {rank} dimensions.")
    return axis % room


def _transpose(node: Node, graph: Graph, target: Target) -> LoweredNode:
    source = _input(node, graph)
    order = node.integers("perm", tuple(reversed(range(len(source.shape)))))
    return lower_view(node, source.transposed(order), graph)


def _slice(node: Node, graph: Graph, target: Target) -> LoweredNode:
    view = _input(node, graph)
    starts, ends = required_constant(node, graph, 1), required_constant(node, graph, 2)
    axes, steps = optional_constant(node, graph, 3), optional_constant(node, graph, 4)
    chosen = range(starts.size) if axes is None else axes.ravel().tolist()
    strides = [1] * starts.size if steps is None else steps.ravel().tolist()
    for axis, start, end, step in zip(
        chosen, starts.ravel().tolist(), ends.ravel().tolist(), strides, strict=True
    ):
        require(-len(view.shape) <= axis < len(view.shape), node, graph)
        axis %= len(view.shape)
        view = view.sliced(axis, *_slice_range(start, end, step, view.shape[axis]), step)
    return lower_view(node, view, graph)


def _slice_range(start: int, end: int, step: int, n: int) -> tuple[int, int]:
    """First position and length of a slice of `n` positions."""
    if step < 0:
        taken = range(*slice(start, end, step).indices(n))
        return taken.start, len(taken)
    first, last = (min(max(i + n if i < 0 else i, 0), n) for i in (start, end))
    return first, max(-(-(last - first) // step), 0)


def _concat(node: Node, graph: Graph, target: Target) -> LoweredNode:
    y = node.outputs[0]
    result = whole_view(y, graph.types[y])
    full = [x for x in node.inputs if graph.types[x].size]
    if len(full) == 1:
        return LoweredNode(aliases=(TensorAlias(y, full[0]),))
    axis = axis_of(node, len(result.shape))
    calls: list[Call] = []
    at = 0
    for x in node.inputs:
        source = whole_view(x, graph.types[x])
        calls += copy_calls(
            source, result.sliced(axis, at, source.shape[axis]), graph.types[y].itemsize, node.name
        )
        at += source.shape[axis]
    return LoweredNode(calls=tuple(calls))


def _split(node: Node, graph: Graph, target: Target) -> LoweredNode:
    view = _input(node, graph)
    axis = axis_of(node, len(view.shape))
    parts, at = [], 0
    for i, y in enumerate(node.outputs):
        if not y:
            raise GraphError(
                f"node {node.name!r} (Split) leaves out output {i}, whose length is unknown then."
            )
        n = graph.types[y].shape[axis]
        parts.append(lower_view(node, view.sliced(axis, at, n), graph, i))
        at += n
    return concatenate_lowered(parts)


def _expand(node: Node, graph: Graph, target: Target) -> LoweredNode:
    return lower_view(node, _input(node, graph).broadcast(graph.types[node.outputs[0]].shape), graph)


def _tile(node: Node, graph: Graph, target: Target) -> LoweredNode:
    repeats, view = required_constant(node, graph, 1), _input(node, graph)
    require(repeats.size == len(view.shape), node, graph)
    pairs = list(zip(repeats.ravel().tolist(), view.shape, strict=True))
    lifted = whole_view(view.tensor, graph.types[view.tensor], [k for _, n in pairs for k in (1, n)])
    return lower_view(node, lifted.broadcast([k for r, n in pairs for k in (r, n)]), graph)


def _depth_to_space(node: Node, graph: Graph, target: Target) -> LoweredNode:
    view = _input(node, graph)
    b = _blocksize(node)
    depth = view.shape[1] // (b * b)
    if node.text("mode", "DCR") == "CRD":
        return lower_view(node, view.split(1, (depth, b, b)).transposed((0, 1, 4, 2, 5, 3)), graph)
    return lower_view(node, view.split(1, (b, b, depth)).transposed((0, 3, 4, 1, 5, 2)), graph)


def _space_to_depth(node: Node, graph: Graph, target: Target) -> LoweredNode:
    view = _input(node, graph)
    b = _blocksize(node)
    _, _, height, width = view.shape
    parts = view.split(3, (width // b, b)).split(2, (height // b, b))
    order = (0, 1, 3, 5, 2, 4) if node.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return lower_view(node, parts.transposed(order), graph)


def _bit_cast(node: Node, graph: Graph, target: Target) -> LoweredNode:
    return LoweredNode(aliases=(TensorAlias(node.outputs[0], node.inputs[0]),))


def _blocksize(node: Node) -> int:
    size = node.integer("blocksize", 0)
    if size < 1:
        raise GraphError(f"node {node.name!r} ({node.op}) has the blocksize {size}; give at least 1.")
    return size


def _input(node: Node, graph: Graph) -> View:
    return whole_view(node.inputs[0], graph.types[node.inputs[0]])


RULES: Mapping[str, Any] = {
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _concat,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "BitCast": _bit_cast,
}
