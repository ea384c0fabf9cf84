"""Lower Resize; two adjacent axes are resized in one pass.

Extensions of pliant: the attribute `layout`, "nhwc" for a tensor whose type has its channels last, and the
nearest_mode "simple" of opset 10, which rounds up along an axis that shrinks and down along others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose, prod
from typing import Any

import numpy as np

from pliant.compiler.executable.call import (
    Call,
    FieldValue,
    Kernel,
    LoweredNode,
    PackedConstant,
    Ref,
    Target,
    TensorAlias,
)
from pliant.compiler.rules.conv.lower_pool import layout_of
from pliant.compiler.rules.conv.resize_taps import AxisScaling, AxisTaps, ResizeOptions, make_taps
from pliant.compiler.rules.move.copy_calls import grain_of
from pliant.compiler.rules.move.lower_move import optional_constant, required_constant
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.move.nearest import SIZES, NearestArgs, nearest_ir
from pliant.kernels.move.resample import ResampleArgs, ResampleForm, resample_ir

_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"),
)


def _resize(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    shape, result = graph.types[x].shape, graph.types[y]
    if result.size == 0:
        return LoweredNode()
    if 0 in shape:
        raise GraphError(f"node {node.name!r} ({node.op}) has nothing to make {result} of.")
    options = _options(node)
    taps = {
        axis: make_taps(shape[axis], result.shape[axis], scaling, options)
        for axis, scaling in enumerate(_scalings(node, graph))
        if shape[axis] != result.shape[axis] or not scaling.is_identity
    }
    if not taps:
        return LoweredNode(aliases=(TensorAlias(y, x),))
    calls: list[Call] = []
    packed: dict[str, PackedConstant] = {}
    temporaries: dict[str, int] = {}
    source, source_shape = x, list(shape)
    passes = _passes(shape, result.shape, list(taps))
    for i, axes in enumerate(passes):
        made = y if i == len(passes) - 1 else f"{y}.pass{i}"
        image = _image(source_shape, axes, taps)
        call, tables = (_nearest if image.is_selection else _filter)(node, source, made, image, result)
        calls.append(call)
        packed |= {name: _pack(table) for name, table in tables.items()}
        for axis in axes:
            source_shape[axis] = result.shape[axis]
        source = made
        if made != y:
            temporaries[made] = prod(source_shape) * result.itemsize
    return LoweredNode(calls=tuple(calls), packed=packed, temporaries=temporaries)


def _passes(shape: Sequence[int], result: Sequence[int], axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of axes that are resized together, in order: the last two if they are adjacent; shrinking ones
    first.
    """
    *others, last = axes
    joined: tuple[int, ...] = (last,)
    if others and prod(shape[others[-1] + 1 : last]) == 1:
        joined = (others.pop(), last)
    shrink = [(axis,) for axis in others if result[axis] < shape[axis]]
    grow = [(axis,) for axis in others if result[axis] >= shape[axis]]
    return [*shrink, joined, *grow]


@dataclass(frozen=True, slots=True, eq=False)
class _ResizeView:
    """A tensor viewed as [outer, height, width, inner], and the taps of the resized axes."""

    outer: int
    height: int
    width: int
    inner: int
    rows: AxisTaps | None
    columns: AxisTaps | None

    @property
    def out_height(self) -> int:
        return self.height if self.rows is None else len(self.rows.places)

    @property
    def out_width(self) -> int:
        return self.width if self.columns is None else len(self.columns.places)

    @property
    def is_selection(self) -> bool:
        return all(taps is None or taps.is_selection for taps in (self.rows, self.columns))


def _image(shape: Sequence[int], axes: tuple[int, ...], taps: Mapping[int, AxisTaps]) -> _ResizeView:
    """Two axes are rows and columns; a single axis is the rows, with all dimensions after it as columns, if
    any.
    """
    outer, inner = prod(shape[: axes[0]]), prod(shape[axes[-1] + 1 :])
    first, last = taps[axes[0]], taps[axes[-1]]
    if len(axes) == 2:
        return _ResizeView(outer, shape[axes[0]], shape[axes[1]], inner, first, last)
    if inner > 1:
        return _ResizeView(outer, shape[axes[0]], 1, inner, first, None)
    return _ResizeView(outer, 1, shape[axes[0]], 1, None, last)


_ResizeCall = tuple[Call, dict[str, np.ndarray]]
"""A call, and the tables that it reads."""


def _nearest(node: Node, source: str, made: str, image: _ResizeView, type_: TensorType) -> _ResizeCall:
    """Selection of rows and columns."""
    stay = np.zeros((1, 1), np.int32)
    tables = {
        f"{made}.{name}": stay if taps is None else taps.places
        for name, taps in (("rows", image.rows), ("columns", image.columns))
    }
    pixel_bytes = image.inner * type_.itemsize
    size = pixel_bytes if image.inner == 1 and pixel_bytes in SIZES else None
    name = f"nearest_{size or 'pixels'}"
    n_units = image.outer * image.out_height
    call = Call(
        kernel=Kernel(name, partial(nearest_ir, name=name, size=size)),
        layout=NearestArgs,
        fields={
            "source": Ref(source),
            "target": Ref(made),
            "row_places": Ref(f"{made}.rows"),
            "column_places": Ref(f"{made}.columns"),
            "height": image.height,
            "width": image.width,
            "out_height": image.out_height,
            "out_width": image.out_width,
            "pixel_bytes": pixel_bytes,
        },
        n_units=n_units,
        reads=(source, *tables),
        writes=(made,),
        grain=grain_of(n_units, n_units * image.out_width * (pixel_bytes + 4)),
        label=node.name,
    )
    return call, tables


def _filter(node: Node, source: str, made: str, image: _ResizeView, type_: TensorType) -> _ResizeCall:
    """Weighted sums of rows and columns."""
    has_rows, has_columns = image.rows is not None, image.columns is not None
    form = ResampleForm(type_.dtype, has_rows, has_columns, is_wide=has_columns and image.inner > 1)
    tables: dict[str, np.ndarray] = {}
    fields: dict[str, FieldValue] = {
        "source": Ref(source),
        "target": Ref(made),
        "height": image.height,
        "width": image.width,
        "out_height": image.out_height,
        "out_width": image.out_width,
        "inner": image.inner,
    }
    for axis, taps in (("row", image.rows), ("column", image.columns)):
        if taps is not None:
            for part in ("places", "weights", "shifts"):
                name = f"{made}.{axis}_{part}"
                tables[name] = np.ascontiguousarray(getattr(taps, part).T)
                fields[f"{axis}_{part}"] = Ref(name)
            fields[f"{axis}_taps"] = taps.places.shape[1]
    n_units = image.outer * image.out_height
    n_taps = sum(taps.places.shape[1] for taps in (image.rows, image.columns) if taps is not None)
    row = max(image.width, image.out_width) * image.inner
    call = Call(
        kernel=Kernel(form.name, partial(resample_ir, form=form)),
        layout=ResampleArgs,
        fields=fields,
        n_units=n_units,
        reads=(source, *tables),
        writes=(made,),
        grain=grain_of(n_units, n_units * row * 4 * n_taps),
        scratch_bytes=image.width * image.inner * DTYPES[form.sums].itemsize
        if has_rows and has_columns
        else 0,
        label=node.name,
    )
    return call, tables


def _pack(table: np.ndarray) -> PackedConstant:
    def fill(memory: np.ndarray) -> None:
        memory[: table.nbytes] = table.reshape(-1).view(np.uint8)

    return PackedConstant(table.nbytes, fill)


def _options(node: Node) -> ResizeOptions:
    default = "asymmetric" if node.op == "Upsample" else "half_pixel"
    options = ResizeOptions(
        mode=node.text("mode", "nearest"),
        coordinates=node.text("coordinate_transformation_mode", default),
        rounding="floor" if node.op == "Upsample" else node.text("nearest_mode", "round_prefer_floor"),
        cubic=node.real("cubic_coeff_a", -0.75),
        is_antialias=node.flag("antialias"),
        is_inside_only=node.flag("exclude_outside"),
        outside=node.real("extrapolation_value", 0.0),
    )
    for what, value, known in (
        ("mode", options.mode, ("nearest", "linear", "cubic")),
        ("nearest_mode", options.rounding, _ROUNDINGS),
        ("coordinate_transformation_mode", options.coordinates, _COORDINATES),
    ):
        if value not in known:
            raise GraphError(
                f"node {node.name!r} ({node.op}) has the {what} {value!r}; there are {', '.join(known)}."
            )
    return options


def _scalings(node: Node, graph: Graph) -> list[AxisScaling]:
    """The scaling of every axis, in memory order."""
    is_last = layout_of(node) == "nhwc"
    shape, result = (
        (t[0], t[-1], *t[1:-1]) if is_last else t
        for t in (graph.types[x].shape for x in (node.inputs[0], node.outputs[0]))
    )
    axes = _axes(node, len(shape))
    scalings = [AxisScaling()] * len(shape)
    rois = _rois(node, graph, len(axes))
    for i, (axis, scale) in enumerate(zip(axes, _scales(node, graph, shape, result, axes), strict=True)):
        scalings[axis] = AxisScaling(*scale, *rois[i])
    return [scalings[0], *scalings[2:], scalings[1]] if is_last else scalings


def _scales(
    node: Node, graph: Graph, shape: Sequence[int], result: Sequence[int], axes: Sequence[int]
) -> list[tuple[float, float]]:
    """The factor and the result's length for each of `axes`: as given, or from sizes."""
    given = optional_constant(node, graph, 1 if node.op == "Upsample" else 2)
    if given is not None and given.size:
        _check_size(node, "scales", given, len(axes))
        factors = [float(s) for s in given.ravel()]
        return [(s, _length(s * shape[axis])) for s, axis in zip(factors, axes, strict=True)]
    sizes = required_constant(node, graph, 3)
    _check_size(node, "sizes", sizes, len(axes))
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [(result[axis] / shape[axis], float(result[axis])) for axis in axes]
    wanted = [int(n) / shape[axis] for n, axis in zip(sizes.ravel(), axes, strict=True)]
    scale = min(wanted) if policy == "not_larger" else max(wanted)
    return [(scale, scale * shape[axis]) for axis in axes]


def _length(exact: float) -> float:
    """A length computed with a float32 factor, rounded if it is almost an integer."""
    return float(round(exact)) if isclose(exact, round(exact), rel_tol=1e-6) else exact


def _rois(node: Node, graph: Graph, n: int) -> list[tuple[float, float]]:
    """Start and end of the region read along each of `n` axes, as fractions of the axis."""
    is_read = node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = optional_constant(node, graph, 1) if is_read else None
    if roi is None or roi.size == 0:
        return [(0.0, 1.0)] * n
    _check_size(node, "roi", roi, 2 * n)
    corners = [float(v) for v in roi.ravel()]
    return list(zip(corners[:n], corners[n:], strict=True))


def _check_size(node: Node, name: str, given: np.ndarray, n: int) -> None:
    if given.size != n:
        raise GraphError(f"node {node.name!r} ({node.op}) has {given.size} numbers as {name}; give {n}.")


def _axes(node: Node, rank: int) -> list[int]:
    return [axis % rank for axis in node.integers("axes", tuple(range(rank)))]


RULES: Mapping[str, Any] = {"Resize": _resize, "Upsample": _resize}
