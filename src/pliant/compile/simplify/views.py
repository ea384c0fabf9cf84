"""Follow a tensor back through operators that move nothing but strides. Knows no kernel.

A chain of reshapes, transposes, slices, splits and expands is one view of the tensor it starts from.
"""

from collections.abc import Callable

from pliant.compile.view import View, whole
from pliant.ir.graph import Graph, Node

_MAX_CHAIN = 16


def traced(graph: Graph, tensor: str, accepts: Callable[[View], bool]) -> View | None:
    """The view of the farthest tensor behind `tensor` that `accepts` takes; None if it takes none."""
    chain: list[tuple[Node, str]] = []
    producers = graph.producers
    x = tensor
    while len(chain) < _MAX_CHAIN and x in producers and producers[x].op in _STEPS:
        chain.insert(0, (producers[x], x))
        x = producers[x].inputs[0]
    for start in range(len(chain) + 1):
        base = chain[start][0].inputs[0] if start < len(chain) else tensor
        view: View | None = whole(base, graph.types[base])
        for node, output in chain[start:]:
            view = None if view is None else _STEPS[node.op](graph, node, output, view)
        if view is not None and accepts(view):
            return view
    return None


def reshaped(view: View, shape: tuple[int, ...]) -> View | None:
    """The view in another shape of the same size; None where its strides do not allow it."""
    if 0 in shape:
        return None
    runs = _runs(view)
    strides: list[int] = []
    left, step = 1, 0
    for n in reversed(shape):
        if n == 1:
            strides.append(0)
            continue
        if left == 1:
            left, step = runs.pop()
        if left % n:
            return None
        strides.append(step)
        left //= n
        step *= n
    return View(view.tensor, view.offset, shape, tuple(reversed(strides)))


def _runs(view: View) -> list[tuple[int, int]]:
    """Neighbouring dimensions that are walked as one, merged: extents and strides."""
    runs: list[tuple[int, int]] = []
    for n, stride in zip(view.shape, view.strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * stride:
            runs[-1] = (runs[-1][0] * n, stride)
        else:
            runs.append((n, stride))
    return runs


def _reshape(graph: Graph, node: Node, output: str, view: View) -> View | None:
    return reshaped(view, graph.types[output].shape)


def _transpose(graph: Graph, node: Node, output: str, view: View) -> View | None:
    rank = len(view.shape)
    perm = node.attributes.get("perm", tuple(reversed(range(rank))))
    assert isinstance(perm, tuple), perm
    order = [int(i) for i in perm]
    shape, strides = (tuple(x[i] for i in order) for x in (view.shape, view.strides))
    return View(view.tensor, view.offset, shape, strides)


def _slice(graph: Graph, node: Node, output: str, view: View) -> View | None:
    """Forward slices with known bounds."""
    given = [graph.constants.get(x) for x in node.inputs[1:] if x]
    if len(given) < len(node.inputs) - 1 or any(a is None for a in given):
        return None
    starts, _, *rest = ([int(i) for i in a.reshape(-1)] for a in given if a is not None)
    axes = rest[0] if rest else list(range(len(starts)))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    offset, strides = view.offset, list(view.strides)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        if step < 1:
            return None
        n = view.shape[axis]
        first = min(max(start + n if start < 0 else start, 0), n)
        offset += first * view.strides[axis]
        strides[axis] *= step
    return View(view.tensor, offset, graph.types[output].shape, tuple(strides))


def _split(graph: Graph, node: Node, output: str, view: View) -> View | None:
    axis = int(node.attributes.get("axis", 0))  # type: ignore[arg-type]
    before = node.outputs[: node.outputs.index(output)]
    if not all(before):
        return None
    first = sum(graph.types[y].shape[axis] for y in before)
    offset = view.offset + first * view.strides[axis]
    return View(view.tensor, offset, graph.types[output].shape, view.strides)


def _expand(graph: Graph, node: Node, output: str, view: View) -> View | None:
    return view.broadcast(graph.types[output].shape)


_STEPS: dict[str, Callable[[Graph, Node, str, View], View | None]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshape),
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
}
