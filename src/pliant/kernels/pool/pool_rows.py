"""Pooling of channels-first float32 images: rows together first, then columns of what they left in scratch.

A window costs as many steps as it has rows and columns, not as many as it has taps.
"""

from collections.abc import Sequence
from functools import partial

from pliant.kernels.conv.window import AXES, Axis
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import strips
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.pool.pool_window import PoolArgs, PoolForm, combined, first_value, rooted

TOGETHER = 8
"""Rows of the output that are in scratch at a time: what was stored last is not read first."""

_CHAINS = 4
_MARGIN = 64  # what vectors read beyond the last window


def line_floats(width: int, pad: int, out: int, stride: int, extent: int) -> int:
    """Floats of one scratch line: a row between pads, and what is read behind it."""
    return (max(pad + width, out * stride + extent) + _MARGIN) // 16 * 16


def scratch_bytes(line: int, out_height: int, out_width: int) -> int:
    """Lines, and the number of taps in every column's window."""
    return 4 * (min(TOGETHER, out_height) * line + out_width + _MARGIN)


def pool_rows_ir(isa: Isa, form: PoolForm) -> str:
    """The kernel `form.name` with PoolArgs: a unit is one channel of one image."""
    module = Module(isa)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        (line,) = f.fields(args, PoolArgs, "line")
        d, h, w = (Axis.of(f, args, PoolArgs, axis) for axis in AXES)
        lines = f.least(h.out, TOGETHER)
        with f.each(0, lines * line, f.lanes) as i:
            f.store(first_value(f, form, f.vec), f.at(scratch, i))
        if form.reduction == "average":
            _count(f, w, f.at(scratch, lines * line))
        with f.each(lo, hi) as unit, f.each(0, d.out) as od, f.each(0, h.out, TOGETHER) as first:
            stop = f.least(first + TOGETHER, h.out)
            with f.each(first, stop) as oh:
                _rows(f, form, (d, h, w), (unit, od, oh), f.at(scratch, (oh - first) * line + w.pad))
            with f.each(first, stop) as oh:
                _columns(f, form, (d, h, w), (unit, od, oh), f.at(scratch, (oh - first) * line))
    return module.text()


_Axes = tuple[Axis, Axis, Axis]
_Place = tuple[Value, Value, Value]


def _rows(f: Function, form: PoolForm, axes: _Axes, place: _Place, to: Value) -> None:
    """to[column] = all rows in the windows of one output row."""
    x, power = f.fields(f.params[0], PoolArgs, "x", "power")
    d, h, w = axes
    unit, od, oh = place
    in_depth, in_height = d.taps(f, od), h.taps(f, oh)
    plane = f.at(x, unit * d.size * h.size * w.size)

    def visit(column: Value, lanes: int, count: int) -> None:
        type_ = vector(lanes, "float") if lanes > 1 else "float"
        offsets = [column + i * lanes for i in range(count)]
        with f.loop(*in_depth, carry=[first_value(f, form, type_)] * count) as deep:
            behind = (d.start(od) + deep.index * d.dilation) * h.size
            with f.loop(*in_height, carry=deep.carried) as high:
                row = f.at(plane, (behind + h.start(oh) + high.index * h.dilation) * w.size)
                values = [f.load(f.at(row, offset), type_) for offset in offsets]
                high.carry(
                    [combined(f, form, a, b, power) for a, b in zip(high.carried, values, strict=True)]
                )
            deep.carry(high.carried)
        for value, offset in zip(deep.carried, offsets, strict=True):
            f.store(value, f.at(to, offset))

    strips(f, w.size, visit, chains=_CHAINS)


def _columns(f: Function, form: PoolForm, axes: _Axes, place: _Place, line: Value) -> None:
    """One output row, from what its rows left in `line`."""
    args = f.params[0]
    y, power, counts_pads = f.fields(args, PoolArgs, "y", "power", "counts_pads")
    d, h, w = axes
    unit, od, oh = place
    to = f.at(y, ((unit * d.out + od) * h.out + oh) * w.out)
    summed = PoolForm("average") if form.reduction == "lp" else form
    is_padded = counts_pads.compare("ne", 0)
    numbers = [_taps(f, axis, at, is_padded) for axis, at in ((d, od), (h, oh))]

    def visit(column: Value, lanes: int, count: int) -> None:
        type_ = vector(lanes, "float") if lanes > 1 else "float"
        offsets = [column + i * lanes for i in range(count)]
        with f.loop(0, w.kernel, carry=[first_value(f, form, type_)] * count) as turn:
            tap = f.at(line, turn.index * w.dilation)
            values = [
                _strided(f, f.at(tap, offset * (form.stride_w or w.stride)), form, lanes)
                for offset in offsets
            ]
            turn.carry([combined(f, summed, a, b, power) for a, b in zip(turn.carried, values, strict=True)])
        for total, offset in zip(turn.carried, offsets, strict=True):
            f.store(_ended(f, form, total, offset, numbers), f.at(to, offset))

    strips(f, w.out, visit, lanes=0 if form.stride_w else 1, chains=2)


def _ended(f: Function, form: PoolForm, total: Value, column: Value, numbers: Sequence[Value]) -> Value:
    """Divided by the number of taps, `numbers` in depth and height, or the root taken."""
    line, power, out_h = f.fields(f.params[0], PoolArgs, "line", "power", "out_h")
    lines = f.least(out_h, TOGETHER)
    if form.reduction == "lp":
        return rooted(f, total, power)
    if form.reduction == "max":
        return total
    in_row = f.load(f.at(f.params[3], lines * line + column), total.type)
    rows = f.cast("sitofp", numbers[0] * numbers[1], "float")
    lanes = int(total.type[1:].split(" ")[0]) if total.type.startswith("<") else 0
    return total / (in_row * (f.splat(rows, lanes) if lanes else rows))


def _count(f: Function, w: Axis, to: Value) -> None:
    """to[column] = the taps of one output row that count."""
    (counts_pads,) = f.fields(f.params[0], PoolArgs, "counts_pads")
    with f.each(0, w.out) as ow:
        n = _taps(f, w, ow, counts_pads.compare("ne", 0))
        f.store(f.cast("sitofp", n, "float"), f.at(to, ow))


def _taps(f: Function, axis: Axis, at: Value, is_padded: Value) -> Value:
    """How many taps of an output place count: those within pads, or within the image."""
    ends = [axis.taps(f, at, with_pads=padded) for padded in (True, False)]
    padded, inside = (last - first for first, last in ends)
    return f.select(is_padded, padded, inside)


def _strided(f: Function, at: Value, form: PoolForm, lanes: int) -> Value:
    """Every first or second float."""
    if lanes == 1:
        return f.load(at)
    load = partial(f.load, type_=vector(lanes, "float"))
    if form.stride_w == 1:
        return load(at)
    return f.shuffle(load(at), load(f.at(at, lanes)), range(0, 2 * lanes, 2))
