"""Sample images at a grid of coordinates (ONNX GridSample).

Coordinates are computed in float32. Values outside are zero, the nearest edge, or reflected at it; a NaN
coordinate reads an unspecified position inside.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import and_, mul

from pliant.kernels.emit import elementary
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

MAX_RANK = 3

_CUBIC = -0.75
_FARTHEST = 1e25
"""The limit of coordinates: larger ones would overflow when multiplied by a length."""


class GridArgs(ctypes.Structure):
    """target[b, c, p] = the image source[b, c] at coordinates grid[b, p], innermost dimension first.

    All float32 and dense; `dims` are the image's, outermost first; `points` per batch entry.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("grid", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("points", ctypes.c_int64),
        ("image", ctypes.c_int64),
        ("dims", ctypes.c_int64 * MAX_RANK),
    )


@dataclass(frozen=True, slots=True)
class GridForm:
    """The compile-time parameters of a grid kernel."""

    rank: int
    mode: str
    padding: str
    is_aligned: bool

    @property
    def name(self) -> str:
        return f"grid_{self.mode}_{self.padding}_{self.rank}d{'_aligned' * self.is_aligned}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """One dimension: its length as integer and float, and the borders at which it reflects."""

    n: Value
    length: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class _Tap:
    """A position along one dimension, clamped to it; its weight, and whether it was inside."""

    place: Value
    weight: Value
    is_inside: Value


def grid_ir(isa: Isa, sampling: GridForm) -> str:
    """The kernel with GridArgs; a unit is one point of one batch entry, for all channels."""
    module = Module(isa)
    with module.kernel(sampling.name) as f:
        args, lo, hi, _ = f.params
        source, grid, target, channels, points, image = f.fields(
            args, GridArgs, "source", "grid", "target", "channels", "points", "image"
        )
        axes = [_axis(f, args, i, sampling) for i in range(sampling.rank)]
        with f.each(lo, hi) as u:
            at = f.at(grid, u * sampling.rank)
            found = [f.load(f.at(at, sampling.rank - 1 - i)) for i in range(sampling.rank)]
            taps = [_taps(f, x, axis, sampling) for x, axis in zip(found, axes, strict=True)]
            b, p = u // points, u % points
            with f.each(0, channels) as c:
                which = b * channels + c
                y = _sum(f, f.at(source, which * image), axes, taps)
                f.store(y, f.at(target, which * points + p))
    return module.text()


def _axis(f: Function, args: Value, i: int, sampling: GridForm) -> _Axis:
    n = f.load(f.at(f.at(args, GridArgs.dims.offset, "i8"), i, "i64"), "i64")
    length = f.cast("sitofp", n, "float")
    if sampling.is_aligned:
        return _Axis(n, length, f.const(0.0, "float"), length - 1.0)
    return _Axis(n, length, f.const(-0.5, "float"), length - 0.5)


def _taps(f: Function, grid: Value, axis: _Axis, sampling: GridForm) -> list[_Tap]:
    """Positions and weights along one dimension for a coordinate in -1..1."""
    grid = _clamp(f, grid, f.const(-_FARTHEST, "float"), f.const(_FARTHEST, "float"))
    if sampling.is_aligned:
        x = (grid + 1.0) / 2.0 * (axis.length - 1.0)
    else:
        x = ((grid + 1.0) * axis.length - 1.0) / 2.0
    if sampling.mode == "nearest":
        x = elementary.rint(f, x)
    is_beyond = (x < axis.low) | (axis.high < x)
    if sampling.padding == "border":
        x = f.select(is_beyond, _clamp(f, x, f.const(0.0, "float"), axis.length - 1.0), x)
    elif sampling.padding == "reflection":
        x = f.select(is_beyond, _reflect(f, x, axis), x)
    base = elementary.floor(f, x)
    first = f.intrinsic("llvm.fptosi.sat", "i64", base, suffix=".i64.f32")
    weights = _weights(f, x - base, sampling.mode)
    start = -1 if sampling.mode == "cubic" else 0
    return [_tap(f, first, start + i, w, axis, sampling) for i, w in enumerate(weights)]


def _weights(f: Function, r: Value, mode: str) -> list[Value]:
    """Weights of the positions around one, `r` past it."""
    one = f.const(1.0, "float")
    if mode == "nearest":
        return [one]
    if mode == "linear":
        return [one - r, r]
    a, s = _CUBIC, one - r

    def far(d: Value) -> Value:
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    def near(d: Value) -> Value:
        return (d * (a + 2) - (a + 3)) * d * d + 1.0

    return [far(r + 1.0), near(r), near(s), far(s + 1.0)]


def _tap(f: Function, first: Value, step: int, weight: Value, axis: _Axis, sampling: GridForm) -> _Tap:
    limit = 1 << 40  # saturated coordinates can be added to without overflow
    place = f.select(first < -limit, f.const(-limit), f.least(first, limit)) + step
    is_inside = f.op(f"icmp ult {place}, {axis.n.text}", "i1")
    if sampling.padding == "reflection":
        mirrored = _reflect(f, f.cast("sitofp", place, "float"), axis)
        found = f.intrinsic("llvm.fptosi.sat", "i64", mirrored, suffix=".i64.f32")
        place = f.select(is_inside, place, found)
    place = f.select(place < 0, f.const(0), f.least(place, axis.n - 1))
    counts = is_inside if sampling.padding == "zeros" else f.const(1, "i1")
    return _Tap(place, weight, counts)


def _reflect(f: Function, x: Value, axis: _Axis) -> Value:
    """x reflected at the borders until it is between them."""
    span = axis.high - axis.low
    is_left = x < axis.low
    beyond = f.select(is_left, axis.low - x, x - axis.high)
    turns = elementary.trunc(f, beyond / span)
    rest = beyond - turns * span
    half = turns * 0.5
    is_even = half.compare("eq", elementary.trunc(f, half))
    comes_from_low = f.op(f"icmp eq {is_left}, {is_even.text}", "i1")
    mirrored = f.select(comes_from_low, axis.low + rest, axis.high - rest)
    inside = f.select(is_left | (axis.high < x), mirrored, x)
    return f.select(span.compare("eq", 0.0), axis.low, inside)


def _clamp(f: Function, x: Value, low: Value, high: Value) -> Value:
    return f.select(x < low, low, f.select(high < x, high, x))


def _sum(f: Function, image: Value, axes: Sequence[_Axis], taps: Sequence[list[_Tap]]) -> Value:
    """The weighted sum over all combinations of taps; taps outside are skipped."""
    total = f.const(0.0, "float")
    for chosen in product(*taps):
        offset = chosen[0].place
        for axis, tap in zip(axes[1:], chosen[1:], strict=True):
            offset = offset * axis.n + tap.place
        value = f.load(f.at(image, offset))
        value = f.select(reduce(and_, (t.is_inside for t in chosen)), value, f.const(0.0, "float"))
        total = f.fma(value, reduce(mul, (t.weight for t in chosen)), total)
    return total
