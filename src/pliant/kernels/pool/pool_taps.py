"""Combine the taps of a pooling window, finish the result, and compute a tap's share in an average."""

from collections.abc import Sequence

from pliant.kernels.conv.direct.window import WindowAxis
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value
from pliant.kernels.pool.pool_window import PoolArgs, PoolForm, combine_tap, first_value, take_root

MARGIN = 64
"""Floats after a line that vectors may read."""


def locate_row(f: Function, h: WindowAxis, plane: Value, row: Value, floats: Value, outside: Value) -> Value:
    """The address of a row of `floats` floats in a plane; `outside` if it does not exist."""
    is_inside = f.op(f"icmp ult {row}, {h.size.text}", "i1")
    return f.select(is_inside, f.at(plane, row * floats), outside)


def combine_taps(f: Function, form: PoolForm, taps: Sequence[Value]) -> Value:
    """The combination of all taps of a window, or of a part of it."""
    (power,) = f.fields(f.params[0], PoolArgs, "power")
    if form.reduction == "max":
        return _largest(f, taps)
    found = taps[0] if form.reduction == "average" else first_value(f, form, taps[0].type)
    for value in taps[1:] if form.reduction == "average" else taps:
        found = combine_tap(f, form, found, value, power)
    return found


def _largest(f: Function, taps: Sequence[Value]) -> Value:
    """The maximum, or NaN if there is one: x86's max keeps a NaN in the first operand, and two others are
    checked at once.
    """
    found, *rest = taps
    if f.isa.name == "neon":
        for value in rest:
            found = f.intrinsic("llvm.maximum", found.type, found, value)
        return found
    for value in rest:
        found = f.select(value > found, value, found)
    lost = [a.compare("uno", b) for a, b in zip(rest[::2], [*rest[1::2], *rest[-1:]], strict=False)]
    for other in lost[1:]:
        lost[0] = lost[0] | other
    return f.select(lost[0], f.const(float("nan"), found.type), found) if lost else found


def partial_form(form: PoolForm) -> PoolForm:
    """The form that combines partial results: powers are already applied."""
    return PoolForm("average") if form.reduction == "lp" else form


def finish_window(f: Function, form: PoolForm, total: Value, share: Value | None) -> Value:
    """The result of a window: for an average, its total times the `share` of one tap."""
    if share is not None:
        return total * share
    (power,) = f.fields(f.params[0], PoolArgs, "power")
    return take_root(f, total, power) if form.reduction == "lp" else total


def locate_shares(counts: Value, w: WindowAxis) -> Value:
    """The address of the shares of a row's columns, after the counts of their taps."""
    return counts.function.at(counts, w.out + MARGIN)


def count_taps(f: Function, w: WindowAxis, counts: Value) -> None:
    """counts[column] = the counted taps of one row; invalidates the shares."""
    with f.each(0, w.out) as ow:
        f.store(f.cast("sitofp", _taps(f, w, ow), "float"), f.at(counts, ow))
    f.store(f.const(-1.0, "float"), f.at(locate_shares(counts, w), -1))


def update_shares(
    f: Function,
    form: PoolForm,
    axes: tuple[WindowAxis, WindowAxis, WindowAxis],
    place: tuple[Value, Value],
    counts: Value,
) -> None:
    """shares[column] = the weight of one tap of a window, for the row at this depth and height.

    shares[-1] stores the number of window rows for which they were computed; it is the same for most rows.
    """
    d, h, w = axes
    shares = locate_shares(counts, w)

    def counted() -> list[Value]:
        return [f.cast("sitofp", _taps(f, d, place[0]) * _taps(f, h, place[1]), "float")]

    if form.taps[0]:
        top, height = h.start(place[1]), form.taps[0]
        is_inside = (top >= 0) & (top + height <= h.size)
        (rows,) = f.choose(is_inside, lambda: [f.const(float(height), "float")], counted)
    else:
        (rows,) = counted()
    with f.when(rows.compare("ne", f.load(f.at(shares, -1)))):
        f.store(rows, f.at(shares, -1))
        with f.each(0, w.out, f.lanes) as ow:
            taps = f.load(f.at(counts, ow), f.vec) * f.splat(rows)
            f.store(f.const(1.0, f.vec) / taps, f.at(shares, ow))


def _taps(f: Function, axis: WindowAxis, at: Value) -> Value:
    """The number of counted taps of an output position: those within pads, or within the image."""
    (counts_pads,) = f.fields(f.params[0], PoolArgs, "counts_pads")
    ends = [axis.taps(f, at, with_pads=padded) for padded in (True, False)]
    padded, inside = (last - first for first, last in ends)
    return f.select(counts_pads.compare("ne", 0), padded, inside)
