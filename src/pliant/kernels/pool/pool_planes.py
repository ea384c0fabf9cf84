"""Pooling of small channels-first float32 images: one plane per vector lane.

A row of such a plane is shorter than a vector, and computing its window bounds takes longer than pooling it.
Here the planes are transposed to pixels in scratch, so that each window's bounds are computed once for all of
them.
"""

from dataclasses import dataclass
from functools import partial

from pliant.kernels.conv.direct.window import AXES, WindowAxis
from pliant.kernels.conv.transpose_planes import pixels_to_planes, planes_to_pixels
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.pool.pool_taps import (
    MARGIN,
    combine_taps,
    count_taps,
    finish_window,
    locate_row,
    locate_shares,
    partial_form,
    update_shares,
)
from pliant.kernels.pool.pool_window import PoolArgs, PoolForm, PoolWindow, first_value

_TOGETHER = 4


def scratch_bytes(isa: Isa, in_pixels: int, out_pixels: int, columns: int, out_width: int) -> int:
    """Bytes for the pixels of all planes and of their results, the lines of one row, and the shares of its
    columns.
    """
    return 4 * (isa.lanes * (in_pixels + out_pixels + 2 * columns) + 2 * (out_width + MARGIN))


def pool_planes_ir(isa: Isa, form: PoolForm) -> str:
    """The kernel `form.name` with PoolArgs: a unit is one plane per lane; the last unit may overlap
    others.
    """
    module = Module(isa)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        x, y, n_planes = f.fields(args, PoolArgs, "x", "y", "channels")
        d, h, w = (WindowAxis.of(f, args, PoolArgs, axis) for axis in AXES)
        plane, out_plane = d.size * h.size * w.size, d.out * h.out * w.out
        results = f.at(scratch, plane * f.lanes)
        lines = _clear_lines(f, form, w, f.at(results, out_plane * f.lanes))
        with f.each(lo, hi) as unit:
            first = f.least(unit * f.lanes, n_planes - f.lanes)
            planes_to_pixels(f, f.at(x, first * plane), plane, plane, f.lanes, scratch)
            with f.each(0, d.out) as od, f.each(0, h.out) as oh:
                to = f.at(results, (od * h.out + oh) * w.out * f.lanes)
                if form.taps[0]:
                    _write_row_separably(f, form, (d, h, w), (od, oh), scratch, lines, to)
                else:
                    _write_row_by_windows(f, form, (d, h, w), (od, oh), scratch, to)
            to = f.at(y, first * out_plane)

            def store(value: Value, channel: Value, pixel: Value, lanes: int, to: Value = to) -> None:
                f.store(value, f.at(to, channel * out_plane + pixel))

            pixels_to_planes(f, results, out_plane, f.lanes, store)
    return module.text()


_Axes = tuple[WindowAxis, WindowAxis, WindowAxis]
_Place = tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Pixels of one row, of a neutral row, and the taps of every column."""

    row: Value
    outside: Value
    counts: Value


def _clear_lines(f: Function, form: PoolForm, w: WindowAxis, at: Value) -> _Lines:
    right, last = w.pad + w.size, w.out * w.stride + w.kernel
    floats = f.select(right < last, last, right) * f.lanes
    outside = f.at(at, floats)
    counts = f.at(outside, floats)
    if form.taps[0]:
        with f.each(0, floats * 2, f.lanes) as i:
            f.store(first_value(f, form, f.vec), f.at(at, i))
        if form.reduction == "average":
            count_taps(f, w, counts)
    return _Lines(at, outside, counts)


def _write_row_separably(
    f: Function, form: PoolForm, axes: _Axes, place: _Place, pixels: Value, lines: _Lines, to: Value
) -> None:
    """Compute one output row: combine rows first, then columns of the result."""
    _, h, w = axes
    first = h.start(place[1])
    rows = [locate_row(f, h, pixels, first + i, w.size * f.lanes, lines.outside) for i in range(form.taps[0])]
    with f.each(0, w.size) as column:
        taps = [f.load(f.at(row, column * f.lanes), f.vec) for row in rows]
        f.store(combine_taps(f, form, taps), f.at(lines.row, (w.pad + column) * f.lanes))
    if form.reduction == "average":
        update_shares(f, form, axes, place, lines.counts)
    shares = locate_shares(lines.counts, w)
    with f.each(0, w.out) as ow:
        at = f.at(lines.row, ow * w.stride * f.lanes)
        taps = [f.load(f.at(at, i * f.lanes), f.vec) for i in range(form.taps[1])]
        share = f.splat(f.load(f.at(shares, ow))) if form.reduction == "average" else None
        f.store(
            finish_window(f, form, combine_taps(f, partial_form(form), taps), share), f.at(to, ow * f.lanes)
        )


def _write_row_by_windows(
    f: Function, form: PoolForm, axes: _Axes, place: _Place, pixels: Value, to: Value
) -> None:
    """Compute one output row, window by window."""
    d, h, w = axes
    od, oh = place
    rows = d.taps(f, od), h.taps(f, oh)
    low, whole = w.inner_range(f, _TOGETHER)

    def pool(ow: Value, count: int, taps: tuple[Value, Value]) -> None:
        window = PoolWindow(f, form, axes, (od, oh, ow), pixels, f.const(f.lanes))
        offsets = [w.stride * (i * f.lanes) for i in range(count)]
        loads = [partial(f.load, type_=f.vec)] * count
        for i, (value, _) in enumerate(window.reduce((*rows, taps), loads, offsets, f.lanes)):
            f.store(value, f.at(to, (ow + i) * f.lanes))

    with f.each(0, low) as ow:
        pool(ow, 1, w.taps(f, ow))
    with f.each(low, whole, _TOGETHER) as ow:
        pool(ow, _TOGETHER, (f.const(0), w.kernel))
    with f.each(whole, w.out) as ow:
        pool(ow, 1, w.taps(f, ow))
