"""Lower other image operators: grid sampling, region pooling, columns to images."""

from collections.abc import Mapping
from functools import partial
from itertools import product
from math import prod
from typing import Any

from pliant.compiler.executable.call import Call, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rewrite.view import View, whole_view
from pliant.compiler.rules.move.copy_calls import (
    CopyLoop,
    grain_of,
    merge_loops,
    nest_fields,
    split_inner_loops,
)
from pliant.compiler.rules.move.lower_move import require
from pliant.compiler.rules.move.lower_pad import fill_calls, zero_for
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.move import grid_sample as grid
from pliant.kernels.move import move, regions, scatter

_CUBIC_RANK = 2
_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, places = node.inputs
    y = node.outputs[0]
    source, result = graph.types[x], graph.types[y]
    _check_float32(node, graph)
    wanted = (source.shape[0], *result.shape[2:], len(source.shape) - 2)
    require(graph.types[places].shape == wanted and result.shape[:2] == source.shape[:2], node, graph)
    if result.size == 0:
        return LoweredNode()
    mode = node.text("mode", "linear")
    sampling = grid.GridForm(
        rank=len(source.shape) - 2,
        mode=_OLD_MODES.get(mode, mode),
        padding=node.text("padding_mode", "zeros"),
        is_aligned=node.flag("align_corners"),
    )
    limit = _CUBIC_RANK if sampling.mode == "cubic" else grid.MAX_RANK
    if sampling.rank > limit or 0 in source.shape:
        raise GraphError(f"node {node.name!r} (GridSample): {sampling.mode} of {source} has no kernel.")
    dims = source.shape[2:]
    points = prod(result.shape[2:])
    call = Call(
        kernel=Kernel(sampling.name, partial(grid.grid_ir, sampling=sampling)),
        layout=grid.GridArgs,
        fields={
            "source": Ref(x),
            "grid": Ref(places),
            "target": Ref(y),
            "channels": source.shape[1],
            "points": points,
            "image": prod(dims),
            "dims": (*dims, *(0,) * (grid.MAX_RANK - len(dims))),
        },
        n_units=result.shape[0] * points,
        reads=(x, places),
        writes=(y,),
        grain=grain_of(result.shape[0] * points, 16 * result.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _roi_align(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, boxes, batch = node.inputs
    y = node.outputs[0]
    source, result = graph.types[x], graph.types[y]
    _check_float32(node, graph)
    n = result.shape[0]
    require(graph.types[boxes].shape == (n, 4) and graph.types[batch].shape == (n,), node, graph)
    require(len(source.shape) == 4 and result.shape[1] == source.shape[1], node, graph)
    if result.size == 0:
        return LoweredNode()
    if 0 in source.shape:
        raise GraphError(f"node {node.name!r} (RoiAlign) has empty images: {source}.")
    is_max = node.text("mode", "avg") == "max"
    is_half = node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    name = "regions_max" if is_max else "regions_mean"
    n_units = result.shape[0] * result.shape[1]
    call = Call(
        kernel=Kernel(name, partial(regions.regions_ir, name=name, is_max=is_max)),
        layout=regions.RegionArgs,
        fields={
            "source": Ref(x),
            "regions": Ref(boxes),
            "batch": Ref(batch),
            "target": Ref(y),
            "images": source.shape[0],
            "channels": source.shape[1],
            "height": source.shape[2],
            "width": source.shape[3],
            "out_height": result.shape[2],
            "out_width": result.shape[3],
            "samples": node.integer("sampling_ratio", 0),
            "scale": node.real("spatial_scale", 1.0),
            "offset": 0.5 if is_half else 0.0,
            "least": float("-inf") if is_half else 1.0,
        },
        n_units=n_units,
        reads=(x, boxes, batch),
        writes=(y,),
        grain=grain_of(n_units, 64 * result.n_bytes),
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _col2im(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Zeros, then one strided addition for each position of the block."""
    x, y = node.inputs[0], node.outputs[0]
    result = whole_view(y, graph.types[y])
    if result.count == 0:
        return LoweredNode()
    block = graph.constants.get(node.inputs[2])
    if block is None:
        raise GraphError(f"node {node.name!r} (Col2Im) needs its block shape before the run.")
    sizes = [int(n) for n in block.ravel()]
    rank = len(sizes)
    dilations, steps = (node.integers(k, (1,) * rank) for k in ("dilations", "strides"))
    pads = node.integers("pads", (0,) * (2 * rank))
    image = result.shape[2:]
    counts = [
        (image[i] + pads[i] + pads[i + rank] - dilations[i] * (sizes[i] - 1) - 1) // steps[i] + 1
        for i in range(rank)
    ]
    columns = whole_view(x, graph.types[x], (*result.shape[:2], *sizes, *counts))
    zero, packed = zero_for(node, graph)
    calls = list(fill_calls(zero, result, graph.types[y].itemsize, node.name))
    for offsets in product(*map(range, sizes)):
        part, place = columns, result
        for i, offset in enumerate(offsets):
            part = part.sliced(2 + i, offset, 1)
            first = offset * dilations[i] - pads[i]
            skipped = max(0, -(first // steps[i]))
            n = max(0, min(counts[i], (image[i] - 1 - first) // steps[i] + 1) - skipped)
            part = part.sliced(2 + rank + i, skipped, n)
            place = place.sliced(2 + i, first + skipped * steps[i], n, steps[i])
        if place.count:
            flat = View(x, part.offset, place.shape, (*part.strides[:2], *part.strides[2 + rank :]))
            calls.append(_add_call(node, flat, place, graph.types[x]))
    return LoweredNode(calls=tuple(calls), packed=packed)


def _add_call(node: Node, source: View, target: View, type_: TensorType) -> Call:
    """`target` += `source`."""
    size, dtype = type_.itemsize, type_.dtype
    dims = merge_loops(
        [
            CopyLoop(n, s * size, t * size)
            for n, s, t in zip(source.shape, source.strides, target.strides, strict=True)
        ]
    )
    outer, m, n, block = split_inner_loops(node, dims, size)
    name = f"added_{dtype}"
    n_units = prod(d.n for d in outer) * -(-m.n // block)
    return Call(
        kernel=Kernel(name, partial(scatter.add_strided_ir, name=name, dtype=dtype)),
        layout=move.MoveArgs,
        fields={
            "source": Ref(source.tensor, source.offset * size),
            "target": Ref(target.tensor, target.offset * size),
            **nest_fields(outer, m, n, block),
        },
        n_units=n_units,
        reads=(source.tensor, target.tensor),
        writes=(target.tensor,),
        grain=grain_of(n_units, source.count * size),
        label=node.name,
    )


def _check_float32(node: Node, graph: Graph) -> None:
    for x in node.inputs[:2]:
        if graph.types[x].dtype != "float32":
            raise GraphError(
                f"node {node.name!r} ({node.op}) has {graph.types[x]} as {x!r}; kernels exist for float32."
            )


RULES: Mapping[str, Any] = {"GridSample": _grid_sample, "RoiAlign": _roi_align, "Col2Im": _col2im}
