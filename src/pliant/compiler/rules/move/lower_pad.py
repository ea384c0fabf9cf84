"""Lower Pad, and cropping or padding around the centre."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pliant.compiler.executable.call import Call, LoweredNode, PackedConstant, Target
from pliant.compiler.rewrite.view import View, whole_view
from pliant.compiler.rules.move.copy_calls import copy_calls
from pliant.compiler.rules.move.lower_move import lower_view, optional_constant, require, required_constant
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node

_MODES = ("constant", "edge", "reflect", "wrap")


def zero_for(node: Node, graph: Graph) -> tuple[View, dict[str, PackedConstant]]:
    """A zero of the first output's type, and its packed constant."""
    y = node.outputs[0]
    name, size = f"{y}.zero", graph.types[y].itemsize

    def fill(memory: np.ndarray) -> None:
        memory[:] = 0

    return View(name, 0, (), ()), {name: PackedConstant(size, fill)}


def fill_calls(value: View, target: View, size: int, label: str) -> tuple[Call, ...]:
    """Fill `target` with the one element of `value`."""
    single = View(value.tensor, value.offset, (), ())
    return copy_calls(single.broadcast(target.shape), target, size, label)


def frame_calls(
    inner: View, at: Sequence[int], target: View, value: View, size: int, label: str
) -> tuple[Call, ...]:
    """`target` with `inner` at position `at`, and `value` elsewhere."""
    calls = list(copy_calls(inner, _box(target, at, inner.shape), size, label))
    for axis, (start, n) in enumerate(zip(at, inner.shape, strict=True)):
        within = _box(target, [*at[:axis], *[0] * (len(at) - axis)], _partial_shape(inner, target, axis))
        for first, stop in ((0, start), (start + n, target.shape[axis])):
            calls += fill_calls(value, within.sliced(axis, first, stop - first), size, label)
    return tuple(calls)


def _box(view: View, at: Sequence[int], shape: Sequence[int]) -> View:
    for axis, (start, n) in enumerate(zip(at, shape, strict=True)):
        view = view.sliced(axis, start, n)
    return view


def _partial_shape(inner: View, outer: View, axis: int) -> tuple[int, ...]:
    """Lengths of the inner box before `axis`, and of the outer one from there on."""
    return inner.shape[:axis] + outer.shape[axis:]


def _pad(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    source, result = whole_view(x, graph.types[x]), whole_view(y, graph.types[y])
    size = graph.types[y].itemsize
    before, after = _pads(node, graph, len(source.shape))
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        crop = max(-first, 0), max(-last, 0)
        source = source.sliced(axis, crop[0], max(source.shape[axis] - sum(crop), 0))
    if result.count == 0 or source.shape == result.shape:
        return lower_view(node, source, graph)
    at = [max(n, 0) for n in before]
    mode = node.text("mode", "constant")
    if mode not in _MODES:
        raise GraphError(f"node {node.name!r} (Pad) has the mode {mode!r}; there are {', '.join(_MODES)}.")
    if mode != "constant":
        return LoweredNode(calls=_mirror_calls(node, source, at, result, size, mode))
    if len(node.inputs) > 2 and node.inputs[2]:
        value = whole_view(node.inputs[2], graph.types[node.inputs[2]])
        require(value.count == 1 and graph.types[node.inputs[2]].itemsize == size, node, graph)
        return LoweredNode(calls=frame_calls(source, at, result, value, size, node.name))
    zero, packed = zero_for(node, graph)
    return LoweredNode(calls=frame_calls(source, at, result, zero, size, node.name), packed=packed)


def _pads(node: Node, graph: Graph, rank: int) -> tuple[list[int], list[int]]:
    """Elements before and after, of every axis; negative numbers crop."""
    pads, axes = required_constant(node, graph, 1), optional_constant(node, graph, 3)
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes.ravel()]
    before, after = [0] * rank, [0] * rank
    numbers = [int(n) for n in pads.ravel()]
    half = len(numbers) // 2
    for axis, first, last in zip(chosen, numbers[:half], numbers[half:], strict=True):
        before[axis], after[axis] = first, last
    return before, after


def _mirror_calls(
    node: Node, source: View, at: Sequence[int], target: View, size: int, mode: str
) -> tuple[Call, ...]:
    """Fill the border from the interior, axis by axis, so that corners are copied from finished edges."""
    if 0 in source.shape:
        raise GraphError(f"node {node.name!r} (Pad) has nothing of which to make its {mode} padding.")
    calls = list(copy_calls(source, _box(target, at, source.shape), size, node.name))
    for axis, (start, n) in enumerate(zip(at, source.shape, strict=True)):
        rest = len(at) - axis - 1
        region = _box(
            target,
            [*[0] * (axis + 1), *at[len(at) - rest :]],
            [*target.shape[: axis + 1], *source.shape[len(at) - rest :]],
        )
        borders = [*range(start), *range(start + n, target.shape[axis])]
        places = [start + _mirror_position(p - start, n, mode) for p in borders]
        for first, count, place, step in _runs(borders, places):
            calls += copy_calls(
                region.sliced(axis, place, count, step), region.sliced(axis, first, count), size, node.name
            )
    return tuple(calls)


def _mirror_position(p: int, n: int, mode: str) -> int:
    """The position within 0..n-1 that a position outside copies; `mode` is any but "constant"."""
    if mode == "edge":
        return min(max(p, 0), n - 1)
    if mode == "wrap":
        return p % n
    period = max(2 * (n - 1), 1)
    return min(p % period, period - p % period) if n > 1 else 0


def _runs(targets: Sequence[int], sources: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of consecutive targets whose sources have a constant step: (first target, count, first source,
    step).
    """
    i = 0
    while i < len(targets):
        j, step = i + 1, 0
        while j < len(targets) and targets[j] == targets[j - 1] + 1:
            following = sources[j] - sources[j - 1]
            if j > i + 1 and following != step:
                break
            step = following
            j += 1
        yield targets[i], j - i, sources[i], step
        i = j


def _center_crop_pad(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    source, result = whole_view(x, graph.types[x]), whole_view(y, graph.types[y])
    size = graph.types[y].itemsize
    at = [0] * len(source.shape)
    for axis, (n, wanted) in enumerate(zip(source.shape, result.shape, strict=True)):
        if n > wanted:
            source = source.sliced(axis, (n - wanted) // 2, wanted)
        at[axis] = max(wanted - n, 0) // 2
    if result.count == 0 or source.shape == result.shape:
        return lower_view(node, source, graph)
    zero, packed = zero_for(node, graph)
    return LoweredNode(calls=frame_calls(source, at, result, zero, size, node.name), packed=packed)


RULES: Mapping[str, Any] = {"Pad": _pad, "CenterCropPad": _center_crop_pad}
