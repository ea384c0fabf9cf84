"""Lower Resize: positions and weights of every output position, one axis after another.

Coordinates, filters and rounding are those of ONNX's Resize at opset 19; a filter is taken apart into taps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import floor, prod
from typing import Any

import numpy as np

from pliant.arrays import Float32, Int32
from pliant.compiler.executable.call import Alias, Call, Kernel, Lowered, Packed, Ref, Target
from pliant.compiler.rules.move.copy_calls import grain_of
from pliant.compiler.rules.move.lower_index import gather, rows_along
from pliant.compiler.rules.move.lower_move import required, static
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.move.resample import ResampleArgs, resample_ir

_WIDE = 4
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_crop_and_resize"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The attributes of a Resize node."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    is_antialias: bool
    is_inside_only: bool
    outside: float


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """Output position p is `shifts[p]` plus the sum over t of `weights[p, t]` times input `places[p, t]`."""

    places: Int32[np.ndarray, "n t"]
    weights: Float32[np.ndarray, "n t"]
    shifts: Float32[np.ndarray, " n"]

    @property
    def is_selection(self) -> bool:
        """Whether each position is one input position, unchanged."""
        return self.places.shape[1] == 1 and bool((self.weights == 1).all() and (self.shifts == 0).all())


def make_taps(n_in: int, n_out: int, scale: float, roi: tuple[float, float], options: Options) -> Taps:
    """The taps of one axis; `roi` is start and end, as shares of the axis."""
    x = _coordinates(n_in, n_out, scale, roi, options.coordinates)
    if options.mode == "nearest":
        places = _rounded(x, options.rounding)[:, None]
        weights = np.ones(places.shape)
    else:
        base = np.ceil(x) - 1  # so that a whole number lies one right of its base
        radius = 1 if options.mode == "linear" else 2
        squeeze = min(scale, 1.0) if options.is_antialias else 1.0
        first = floor(-radius / squeeze) + 1
        steps = np.arange(first, 2 - first)
        distance = (steps[None, :] - (x - base)[:, None]) * squeeze
        weights = _triangle(distance) if radius == 1 else _cubic(distance, options.cubic)
        places = base.astype(np.int64)[:, None] + steps[None, :]
        if options.is_inside_only:
            weights = np.where((places >= 0) & (places < n_in), weights, 0)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    shifts = np.zeros(n_out)
    if options.coordinates == "tf_crop_and_resize":
        is_outside = (x < 0) | (x > n_in - 1)
        weights = np.where(is_outside[:, None], 0, weights)
        shifts = np.where(is_outside, options.outside, 0)
    return Taps(
        np.clip(places, 0, n_in - 1).astype(np.int32), weights.astype(np.float32), shifts.astype(np.float32)
    )


def _coordinates(n_in: int, n_out: int, scale: float, roi: tuple[float, float], mode: str) -> np.ndarray:
    """Where output positions lie in the input, float64."""
    y = np.arange(n_out, dtype=np.float64)
    length = scale * n_in  # the output's, before it was made whole
    is_one = length == 1
    x: np.ndarray = (y + 0.5) / scale - 0.5
    if mode == "asymmetric":
        x = y / scale
    elif mode == "align_corners":
        x = y * (0 if is_one else (n_in - 1) / (length - 1))
    elif mode == "tf_crop_and_resize":
        span = (roi[1] - roi[0]) * (n_in - 1)
        x = roi[0] * (n_in - 1) + (y * 0 + span / 2 if is_one else y * span / (length - 1))
    elif mode == "pytorch_half_pixel" and is_one:
        x = y * 0 - 0.5
    elif mode == "half_pixel_symmetric":
        x = n_in / 2 * (1 - n_out / length) + x
    return x


def _rounded(x: np.ndarray, mode: str) -> np.ndarray:
    rounded: Mapping[str, np.ndarray] = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_ceil": np.floor(x + 0.5),
        "round_prefer_floor": np.ceil(x - 0.5),
    }
    return rounded[mode]


def _triangle(distance: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.clip(1 - np.abs(distance), 0, 1)
    return weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution with parameter `a`."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _resize(node: Node, graph: Graph, target: Target) -> Lowered:
    x, y = node.inputs[0], node.outputs[0]
    shape, result = graph.types[x].shape, graph.types[y]
    if result.size == 0:
        return Lowered()
    if 0 in shape:
        raise GraphError(f"node {node.name!r} ({node.op}) has nothing to make {result} of.")
    options = _options(node)
    scales, rois = _scales(node, graph), _rois(node, graph, len(shape), options)
    axes = [
        axis
        for axis, (n_in, n_out) in enumerate(zip(shape, result.shape, strict=True))
        if n_in != n_out or scales[axis] != 1 or rois[axis] != (0.0, 1.0)
    ]
    # What shrinks comes first, and the last axis, which moves single elements, on the smaller side of others.
    ratios = {axis: result.shape[axis] / shape[axis] for axis in axes}
    axes.sort(key=lambda axis: (ratios[axis], axis if ratios[axis] < 1 else -axis))
    if not axes:
        return Lowered(aliases=(Alias(y, x),))
    calls: list[Call] = []
    packed: dict[str, Packed] = {}
    temporaries: dict[str, int] = {}
    source, source_shape = x, list(shape)
    for axis in axes:
        made = y if axis == axes[-1] else f"{y}.axis{axis}"
        taps = make_taps(shape[axis], result.shape[axis], scales[axis], rois[axis], options)
        names = ("places",) if taps.is_selection else ("places", "weights", "shifts")
        tables = {f"{y}.{name}{axis}": getattr(taps, name) for name in names}
        packed |= {name: _packed(table) for name, table in tables.items()}
        type_ = TensorType(result.dtype, tuple(source_shape))
        if taps.is_selection:
            rows = rows_along(type_.shape, axis, type_.itemsize, "int32", result.shape[axis])
            calls += gather(node, source, next(iter(tables)), made, rows)
        else:
            calls.append(_call(node, source, made, list(tables), type_, axis, taps.places.shape))
        source_shape[axis] = result.shape[axis]
        source = made
        if made != y:
            temporaries[made] = prod(source_shape) * result.itemsize
    return Lowered(calls=tuple(calls), packed=packed, temporaries=temporaries)


def _call(
    node: Node,
    source: str,
    made: str,
    tables: list[str],
    type_: TensorType,
    axis: int,
    shape: tuple[int, ...],
) -> Call:
    """One axis of a tensor of `type_` resampled with tables of (positions, taps) `shape`."""
    inner = prod(type_.shape[axis + 1 :])
    outer = prod(type_.shape[:axis])
    n, taps = shape
    is_wide = type_.dtype == "float32" and inner >= _WIDE
    name = f"resample_{type_.dtype}_{'wide' if is_wide else 'single'}"
    return Call(
        kernel=Kernel(name, partial(resample_ir, name=name, dtype=type_.dtype, is_wide=is_wide)),
        layout=ResampleArgs,
        fields={
            "source": Ref(source),
            "target": Ref(made),
            "places": Ref(tables[0]),
            "weights": Ref(tables[1]),
            "shifts": Ref(tables[2]),
            "length": type_.shape[axis],
            "n": n,
            "taps": taps,
            "inner": inner,
        },
        n_units=outer * n,
        reads=(source, *tables),
        writes=(made,),
        grain=grain_of(outer * n, outer * n * inner * 4 * taps),
        label=node.name,
    )


def _packed(table: np.ndarray) -> Packed:
    def fill(memory: np.ndarray) -> None:
        memory[: table.nbytes] = table.reshape(-1).view(np.uint8)

    return Packed(table.nbytes, fill)


def _options(node: Node) -> Options:
    default = "asymmetric" if node.op == "Upsample" else "half_pixel"
    options = Options(
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


def _scales(node: Node, graph: Graph) -> list[float]:
    """The factor of every axis: as given, or from sizes."""
    shape, result = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    axes = _axes(node, len(shape))
    scales = [1.0] * len(shape)
    given = static(node, graph, 1 if node.op == "Upsample" else 2)
    if given is not None and given.size:
        _check_size(node, "scales", given, len(axes))
        for axis, scale in zip(axes, given.ravel(), strict=True):
            scales[axis] = float(scale)
        return scales
    sizes = required(node, graph, 3)
    _check_size(node, "sizes", sizes, len(axes))
    wanted = {axis: int(n) / shape[axis] for axis, n in zip(axes, sizes.ravel(), strict=True)}
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    for axis in axes:
        match policy:
            case "not_larger":
                scales[axis] = min(wanted.values())
            case "not_smaller":
                scales[axis] = max(wanted.values())
            case _:
                scales[axis] = result[axis] / shape[axis]
    return scales


def _rois(node: Node, graph: Graph, rank: int, options: Options) -> list[tuple[float, float]]:
    rois = [(0.0, 1.0)] * rank
    if options.coordinates != "tf_crop_and_resize":
        return rois
    roi = static(node, graph, 1)
    if roi is None or roi.size == 0:
        return rois
    axes = _axes(node, rank)
    _check_size(node, "roi", roi, 2 * len(axes))
    corners = [float(v) for v in roi.ravel()]
    for i, axis in enumerate(axes):
        rois[axis] = corners[i], corners[len(axes) + i]
    return rois


def _check_size(node: Node, name: str, given: np.ndarray, n: int) -> None:
    if given.size != n:
        raise GraphError(f"node {node.name!r} ({node.op}) has {given.size} numbers as {name}; give {n}.")


def _axes(node: Node, rank: int) -> list[int]:
    return [axis % rank for axis in node.integers("axes", tuple(range(rank)))]


RULES: Mapping[str, Any] = {"Resize": _resize, "Upsample": _resize}
