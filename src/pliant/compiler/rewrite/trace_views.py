"""Follow a tensor back through operators that only change strides.

A chain of reshapes, transposes, slices, splits, expands and regular gathers is one view of the tensor it
starts from. In between, a dimension may consist of several runs without a common stride, such as the windows
of an unfold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pliant.compiler.rewrite.view import View, regular_steps, whole_view
from pliant.ir.graph import Graph, Node

_MAX_CHAIN = 16

_Run = tuple[int, int]
"""Number of steps, and the stride of each."""


@dataclass(frozen=True, slots=True)
class _ViewRuns:
    """A tensor's data through strides; each dimension is a list of runs, outermost first."""

    tensor: str
    offset: int
    dims: tuple[tuple[_Run, ...], ...]

    @property
    def view(self) -> View | None:
        """The view; None if a dimension has several strides."""
        joined = [_merge_runs(dim) for dim in self.dims]
        runs = [dim[0] for dim in joined if len(dim) == 1]
        if len(runs) < len(joined):
            return None
        return View(self.tensor, self.offset, tuple(n for n, _ in runs), tuple(s for _, s in runs))

    def along(self, axis: int, start: int, *runs: _Run) -> "_ViewRuns | None":
        """`axis` replaced by one dimension for each of `runs`, from `start` on."""
        own = _merge_runs(self.dims[axis])
        if len(own) != 1:
            return None
        stride = own[0][1]
        made = tuple(((n, step * stride),) for n, step in runs)
        dims = (*self.dims[:axis], *made, *self.dims[axis + 1 :])
        return replace(self, offset=self.offset + start * stride, dims=dims)


def trace_view(graph: Graph, tensor: str, accepts: Callable[[View], bool]) -> View | None:
    """The view of the farthest source of `tensor` that `accepts` allows; None if it allows none."""
    chain: list[tuple[Node, str]] = []
    producers = graph.producers
    x = tensor
    while len(chain) < _MAX_CHAIN and x in producers and producers[x].op in STEPS:
        chain.insert(0, (producers[x], x))
        x = producers[x].inputs[0]
    for start in range(len(chain) + 1):
        base = chain[start][0].inputs[0] if start < len(chain) else tensor
        seen: _ViewRuns | None = _runs(whole_view(base, graph.types[base]))
        for node, output in chain[start:]:
            seen = None if seen is None else STEPS[node.op](graph, node, output, seen)
        view = None if seen is None else seen.view
        if view is not None and accepts(view):
            return view
    return None


def reshape_view(view: View, shape: tuple[int, ...]) -> View | None:
    """The view in another shape of the same size; None if its strides do not allow it."""
    cut = _split_runs(_runs(view), shape)
    return None if cut is None else cut.view


def _runs(view: View) -> _ViewRuns:
    dims = tuple((run,) for run in zip(view.shape, view.strides, strict=True))
    return _ViewRuns(view.tensor, view.offset, dims)


def _merge_runs(runs: Sequence[_Run]) -> tuple[_Run, ...]:
    """Merge adjacent runs that can be walked as one; a run of one step if none is left."""
    found: list[_Run] = []
    for n, stride in runs:
        if n == 1:
            continue
        if found and found[-1][1] == n * stride:
            found[-1] = (found[-1][0] * n, stride)
        else:
            found.append((n, stride))
    return tuple(found) or tuple(runs[:1]) or ((1, 0),)


def _split_runs(seen: _ViewRuns, shape: tuple[int, ...]) -> _ViewRuns | None:
    """The same elements in another shape; None if a run cannot be divided evenly."""
    if 0 in shape:
        return None
    left = [run for run in _merge_runs([run for dim in seen.dims for run in dim]) if run[0] != 1]
    if any(turns == 0 for turns, _ in left):
        return None
    dims: list[tuple[_Run, ...]] = []
    for n in reversed(shape):
        dim: list[_Run] = []
        while n > 1:
            turns, stride = left.pop()
            taken = min(turns, n)
            if turns % taken or n % taken:
                return None
            dim.insert(0, (taken, stride))
            n //= taken
            if turns > taken:
                left.append((turns // taken, stride * taken))
        dims.insert(0, tuple(dim))
    return replace(seen, dims=tuple(dims))


def _reshape(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    return _split_runs(seen, graph.types[output].shape)


def _transpose(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    perm = node.integers("perm", tuple(reversed(range(len(seen.dims)))))
    assert isinstance(perm, tuple), perm
    return replace(seen, dims=tuple(seen.dims[int(i)] for i in perm))


def _slice(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    """Forward slices with known bounds."""
    given = [graph.constants.get(x) for x in node.inputs[1:] if x]
    if len(given) < len(node.inputs) - 1 or any(a is None for a in given):
        return None
    starts, _, *rest = (a.ravel().tolist() for a in given if a is not None)
    axes = rest[0] if rest else list(range(len(starts)))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    before, after = graph.types[node.inputs[0]].shape, graph.types[output].shape
    found: _ViewRuns | None = seen
    for axis, start, step in zip(axes, starts, steps, strict=True):
        if step < 1 or found is None:
            return None
        n = before[axis]
        first = min(max(start + n if start < 0 else start, 0), n)
        found = found.along(axis % len(before), first, (after[axis], step))
    return found


def _split(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    axis = node.integer("axis", 0)
    before = node.outputs[: node.outputs.index(output)]
    if not all(before):
        return None
    first = sum(graph.types[y].shape[axis] for y in before)
    return seen.along(axis % len(seen.dims), first, (graph.types[output].shape[axis], 1))


def _gather(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    """Forward gathers along known, regular indices."""
    shape = graph.types[node.inputs[0]].shape
    axis = node.integer("axis", 0) % len(shape)
    found = regular_steps(graph.constants.get(node.inputs[1]), shape[axis])
    if found is None or any(step < 0 for step in found[1]):
        return None
    turns, steps, start = found
    return seen.along(axis, start, *zip(turns, steps, strict=True))


def _expand(graph: Graph, node: Node, output: str, seen: _ViewRuns) -> _ViewRuns | None:
    view = seen.view
    return None if view is None else _runs(view.broadcast(graph.types[output].shape))


STEPS: dict[str, Callable[[Graph, Node, str, _ViewRuns], _ViewRuns | None]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshape),
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Expand": _expand,
}
"""For each operator that only changes strides, the function from its first input's runs to its output's."""
