"""Pooling of channels-first float32 images: rows are combined into scratch first, then columns.

A window costs one step per row and column instead of one per tap.
"""

from collections.abc import Sequence
from functools import partial

from pliant.kernels.conv.direct.window import AXES, WindowAxis
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import visit_pairs
from pliant.kernels.emit.values import Value, vector
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
from pliant.kernels.pool.pool_window import PoolArgs, PoolForm, combine_tap, first_value

ROWS_TOGETHER = 8
"""Output rows in scratch at a time, so that a line is not read directly after it was stored."""


def line_columns(width: int, pad: int, out: int, stride: int, extent: int) -> int:
    """Columns of one scratch line: a row with its pads."""
    return max(pad + width, out * stride + extent)


def line_floats(columns: int) -> int:
    """Floats of a scratch line, including the margin that is read after it."""
    return (columns + MARGIN) // 16 * 16


def scratch_bytes(line: int, out_height: int, out_width: int) -> int:
    """Bytes for lines, a neutral line for rows outside the image, and the taps and the share of every
    column.
    """
    return 4 * ((min(ROWS_TOGETHER, out_height) + 1) * line + 2 * (out_width + MARGIN))


def pool_rows_ir(isa: Isa, form: PoolForm) -> str:
    """The kernel `form.name` with PoolArgs: a unit is one channel of one image."""
    module = Module(isa)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        (line,) = f.fields(args, PoolArgs, "line")
        d, h, w = (WindowAxis.of(f, args, PoolArgs, axis) for axis in AXES)
        lines = f.least(h.out, ROWS_TOGETHER)
        outside = f.at(scratch, lines * line)
        counts = f.at(outside, line)
        with f.each(0, (lines + 1) * line, f.lanes) as i:
            f.store(first_value(f, form, f.vec), f.at(scratch, i))
        if form.reduction == "average":
            count_taps(f, w, counts)
        with f.each(lo, hi) as unit, f.each(0, d.out) as od, f.each(0, h.out, ROWS_TOGETHER) as first:
            stop = f.least(first + ROWS_TOGETHER, h.out)
            _combine_rows(f, form, (d, h, w), (unit, od, first, stop), outside, f.at(scratch, w.pad))
            with f.each(first, stop) as oh:
                if form.reduction == "average":
                    update_shares(f, form, (d, h, w), (od, oh), counts)
                _combine_columns(
                    f, form, (d, h, w), (unit, od, oh), f.at(scratch, (oh - first) * line), counts
                )
    return module.text()


_Axes = tuple[WindowAxis, WindowAxis, WindowAxis]
_Place = tuple[Value, Value, Value]


def _combine_rows(
    f: Function,
    form: PoolForm,
    axes: _Axes,
    place: tuple[Value, Value, Value, Value],
    outside: Value,
    lines: Value,
) -> None:
    """lines[column] = the combined rows in the windows of an output row, for adjacent output rows.

    `outside` is a neutral row.
    """
    x, line = f.fields(f.params[0], PoolArgs, "x", "line")
    d, h, w = axes
    unit, od, first, stop = place
    plane = f.at(x, unit * d.size * h.size * w.size)

    def visit(offsets: list[Value], lanes: int) -> None:
        type_, count = vector(lanes, "float") if lanes > 1 else "float", len(offsets)
        if not form.taps[0]:
            with f.each(first, stop) as oh:
                store(oh, offsets, _combine_counted_rows(f, form, (d, h, w), (od, oh), plane, type_, offsets))
            return

        def read(row: Value) -> list[Value]:
            at = locate_row(f, h, plane, row, w.size, outside)
            return [f.load(f.at(at, offset), type_) for offset in offsets]

        height = form.taps[0]
        shared = max(height - form.stride_w, 0) if form.stride_w else 0
        before = [value for i in range(shared) for value in read(h.start(first) + i)]
        with f.loop(first, stop, carry=before) as loop:
            rows = [loop.carried[i * count : (i + 1) * count] for i in range(shared)]
            rows += [read(h.start(loop.index) + i) for i in range(shared, height)]
            store(loop.index, offsets, [combine_taps(f, form, taps) for taps in zip(*rows, strict=True)])
            loop.carry([value for row in rows[height - shared :] for value in row])

    def store(oh: Value, offsets: Sequence[Value], values: Sequence[Value]) -> None:
        to = f.at(lines, (oh - first) * line)
        for value, offset in zip(values, offsets, strict=True):
            f.store(value, f.at(to, offset))

    visit_pairs(f, w.size, visit)


def _combine_counted_rows(
    f: Function,
    form: PoolForm,
    axes: _Axes,
    place: tuple[Value, Value],
    plane: Value,
    type_: str,
    offsets: Sequence[Value],
) -> list[Value]:
    """Combine the rows of windows whose height is known only at run time."""
    d, h, w = axes
    od, oh = place
    with f.loop(*d.taps(f, od), carry=[first_value(f, form, type_)] * len(offsets)) as deep:
        behind = (d.start(od) + deep.index * d.dilation) * h.size
        with f.loop(*h.taps(f, oh), carry=deep.carried) as high:
            row = f.at(plane, (behind + h.start(oh) + high.index * h.dilation) * w.size)
            values = [f.load(f.at(row, offset), type_) for offset in offsets]
            high.carry(_combine_taps(f, form, high.carried, values))
        deep.carry(high.carried)
    return deep.carried


def _combine_columns(
    f: Function, form: PoolForm, axes: _Axes, place: _Place, line: Value, counts: Value
) -> None:
    """Compute one output row from the combined rows in `line`."""
    (y,) = f.fields(f.params[0], PoolArgs, "y")
    d, h, w = axes
    unit, od, oh = place
    to = f.at(y, ((unit * d.out + od) * h.out + oh) * w.out)
    summed = partial_form(form)
    lanes = 0 if form.stride_w else 1
    shares = locate_shares(counts, w)

    def taps(tap: Value, odd: int, type_: str, offsets: Sequence[Value]) -> list[Value]:
        places = [f.at(tap, x * (form.stride_w or w.stride)) for x in offsets]
        return [_load_strided(f, place, odd, form, type_) for place in places]

    def known(type_: str, offsets: Sequence[Value]) -> list[Value]:
        # With stride 2, adjacent taps are loaded from the same floats.
        steps = [(i - i % 2, i % 2) if form.stride_w == 2 else (i, 0) for i in range(form.taps[1])]
        values = [taps(f.at(line, even), odd, type_, offsets) for even, odd in steps]
        return [combine_taps(f, summed, one) for one in zip(*values, strict=True)]

    def counted(type_: str, offsets: Sequence[Value]) -> list[Value]:
        with f.loop(0, w.kernel, carry=[first_value(f, form, type_)] * len(offsets)) as loop:
            values = taps(f.at(line, loop.index * w.dilation), 0, type_, offsets)
            loop.carry(_combine_taps(f, summed, loop.carried, values))
        return loop.carried

    def visit(offsets: list[Value], lanes: int) -> None:
        type_ = vector(lanes, "float") if lanes > 1 else "float"
        values = (known if form.taps[1] else counted)(type_, offsets)
        for value, offset in zip(values, offsets, strict=True):
            share = f.load(f.at(shares, offset), type_) if form.reduction == "average" else None
            f.store(finish_window(f, form, value, share), f.at(to, offset))

    visit_pairs(f, w.out, visit, lanes=lanes)


def _combine_taps(f: Function, form: PoolForm, old: Sequence[Value], values: Sequence[Value]) -> list[Value]:
    (power,) = f.fields(f.params[0], PoolArgs, "power")
    return [combine_tap(f, form, a, b, power) for a, b in zip(old, values, strict=True)]


def _load_strided(f: Function, at: Value, odd: int, form: PoolForm, type_: str) -> Value:
    """Every float, or every second one, from index `odd` on."""
    load = partial(f.load, type_=type_)
    if form.stride_w == 1 or type_ == "float":
        return load(f.at(at, odd)) if odd else load(at)
    lanes = int(type_[1:].split(" ")[0])
    return f.shuffle(load(at), load(f.at(at, lanes)), range(odd, 2 * lanes, 2))
