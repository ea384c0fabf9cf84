"""Pooling over the windows of an image: max, average and p-norm.

For channels-first images, a unit is one plane, computed position by position; float32 without indices has
specialised kernels, for small planes (pool_planes.py) and others (pool_rows.py). For channels-last images, a
unit is one output row, with vectors along the channels. (`kernels/runtime/thread_pool.py` is the pool of
threads.)
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

from pliant.kernels.conv.conv_args import ImageLayout
from pliant.kernels.conv.direct.window import AXES, FIELDS, WindowAxis
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, scalar, vector

PoolReduction = Literal["max", "average", "lp"]

ELEMENTS = {
    "float32": "float",
    "float64": "double",
    "int8": "i8",
    "uint8": "i8",
    "int32": "i32",
    "int64": "i64",
}
"""LLVM's type of each dtype that can be pooled; types other than floats support only max."""


class PoolArgs(ctypes.Structure):
    """y = the reduction of x over windows; 1 and 2 dimensions are padded to 3 with leading ones.

    `channels` is the number of channels of a channels-last image, or of all planes of a channels-first one.
    With `counts_pads` an average is divided by all taps within pads, else by those within the image. `power`
    is the norm's p >= 1. `indices`, int64 with y's shape or null, receives the position of each maximum in x;
    with `is_column_major`, w is the slowest dimension of the index. `line` is the length of a scratch line,
    where rows are combined first.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        *FIELDS,
        ("counts_pads", ctypes.c_int64),
        ("power", ctypes.c_int64),
        ("is_column_major", ctypes.c_int64),
        ("line", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class PoolForm:
    """The compile-time parameters of a pooling. With `stride_w` 1 or 2, vectors run along rows.

    `is_by_planes` processes one plane per vector lane; there must be at least as many planes. `taps` are the
    height and width of windows without dilation and with equal strides, in images of one or two dimensions,
    which need no loop over taps; (0, 0) for all others.
    """

    reduction: PoolReduction
    dtype: str = "float32"
    layout: ImageLayout = "nchw"
    stride_w: int = 0
    has_indices: bool = False
    is_by_planes: bool = False
    taps: tuple[int, int] = (0, 0)

    @property
    def is_by_rows(self) -> bool:
        """Whether the kernel is that of kernels/pool/pool_rows.py."""
        return self.is_plain and not self.is_by_planes

    @property
    def is_plain(self) -> bool:
        """Whether the kernels for float32 planes without indices support the form."""
        return self.layout == "nchw" and self.dtype == "float32" and not self.has_indices

    @property
    def name(self) -> str:
        ends = (
            [f"s{self.stride_w}"] * self.is_by_rows
            + ["indices"] * self.has_indices
            + ["planes"] * self.is_by_planes
            + ["{}x{}".format(*self.taps)] * (self.taps != (0, 0))
        )
        return "_".join(["pool", self.reduction, self.dtype, self.layout, *ends])


def pool_ir(isa: Isa, form: PoolForm) -> str:
    """The kernel `form.name` with PoolArgs."""
    module = Module(isa)
    with module.kernel(form.name) as f:
        _, lo, hi, _ = f.params
        with f.each(lo, hi) as unit:
            (_write_plane if form.layout == "nchw" else _write_row)(f, form, unit)
    return module.text()


def _write_plane(f: Function, form: PoolForm, unit: Value) -> None:
    """Compute all outputs of one channel of one image."""
    args = f.params[0]
    x, y, indices = f.fields(args, PoolArgs, "x", "y", "indices")
    d, h, w = (WindowAxis.of(f, args, PoolArgs, axis) for axis in AXES)
    element = ELEMENTS[form.dtype]
    plane = f.at(x, unit * (d.size * h.size * w.size), element)
    first = unit * (d.size * h.size * w.size)
    with f.each(0, d.out) as od, f.each(0, h.out) as oh:
        row = ((unit * d.out + od) * h.out + oh) * w.out
        y_row, index_row = f.at(y, row, element), f.at(indices, row, "i64") if form.has_indices else None
        rows = d.taps(f, od), h.taps(f, oh)

        with f.each(0, w.out) as ow:
            window = PoolWindow(f, form, (d, h, w), (od, oh, ow), plane, f.const(1))
            load = partial(f.load, type_=element)
            ((value, place),) = window.reduce((*rows, w.taps(f, ow)), [load], [f.const(0)], 1)
            f.store(value, f.at(y_row, ow, element))
            if index_row is not None:
                f.store(_index(f, args, first, place, (d, h, w)), f.at(index_row, ow, "i64"))


def _write_row(f: Function, form: PoolForm, unit: Value) -> None:
    """Compute one output row for all channels."""
    args = f.params[0]
    x, y, channels = f.fields(args, PoolArgs, "x", "y", "channels")
    d, h, w = (WindowAxis.of(f, args, PoolArgs, axis) for axis in AXES)
    element = ELEMENTS[form.dtype]
    oh, rest = unit % h.out, unit // h.out
    od, image = rest % d.out, rest // d.out
    base = f.at(x, image * (d.size * h.size * w.size) * channels, element)
    rows = d.taps(f, od), h.taps(f, oh)
    with f.each(0, w.out) as ow:
        taps = (*rows, w.taps(f, ow))
        to = f.at(y, (unit * w.out + ow) * channels, element)
        window = PoolWindow(f, form, (d, h, w), (od, oh, ow), base, channels)
        done = f.const(0)
        for lanes, count in ((f.lanes, 4), (f.lanes, 1), (1, 1)):
            step = lanes * count
            stop = channels - (channels - done) % step
            type_ = vector(lanes, element) if lanes > 1 else element
            with f.each(done, stop, step) as channel:
                offsets = [channel + i * lanes for i in range(count)]
                found = window.reduce(taps, [partial(f.load, type_=type_)] * count, offsets, lanes)
                for (value, _), offset in zip(found, offsets, strict=True):
                    f.store(value, f.at(to, offset, element))
            done = stop


TapRanges = tuple[tuple[Value, Value], tuple[Value, Value], tuple[Value, Value]]
TapLoader = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """The window of one output position, or of adjacent ones; `step` is the column stride."""

    f: Function
    form: PoolForm
    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    at: tuple[Value, Value, Value]
    base: Value
    step: Value

    def reduce(
        self, taps: TapRanges, loads: Sequence[TapLoader], offsets: Sequence[Value], lanes: int
    ) -> list[tuple[Value, Value]]:
        """For each load and offset: the value, and the position in the plane (for a single maximum only)."""
        f, form = self.f, self.form
        element = ELEMENTS[form.dtype]
        type_ = vector(lanes, element) if lanes > 1 else element
        start = first_value(f, form, type_)
        none = [f.const(_NOWHERE)] if form.has_indices else []
        (d, h, w), (od, oh, ow) = self.axes, self.at
        state = [start] * len(loads) + none
        with f.loop(*taps[0], carry=state) as in_d:
            row_d = (d.start(od) + in_d.index * d.dilation) * h.size
            with f.loop(*taps[1], carry=in_d.carried) as in_h:
                row = (row_d + h.start(oh) + in_h.index * h.dilation) * w.size + w.start(ow)
                with f.loop(*taps[2], carry=in_h.carried) as in_w:
                    place = row + in_w.index * w.dilation
                    values = [
                        load(f.at(self.base, place * self.step + offset, element))
                        for load, offset in zip(loads, offsets, strict=True)
                    ]
                    in_w.carry(self._combined(in_w.carried, values, place))
                in_h.carry(in_w.carried)
            in_d.carry(in_h.carried)
        found = in_d.carried[: len(loads)]
        ended = self._ended(found, taps)
        place = f.const(0)
        if none:  # a window that lies in the padding alone has no place of its own
            place = f.select(in_d.carried[-1] >= 0, in_d.carried[-1], place)
        return [(value, place) for value in ended]

    def _combined(self, state: Sequence[Value], values: Sequence[Value], place: Value) -> list[Value]:
        f, form = self.f, self.form
        after = []
        for old, x in zip(state, values, strict=False):
            after.append(combine_tap(f, form, old, x, self._power))
            if form.has_indices:  # the first tap has its place even if it is the least number there is
                keeps = _keeps_maximum(f, old, x, form.dtype) & (state[-1] >= 0)
                after.append(f.select(keeps, state[-1], place))
        return after

    @property
    def _power(self) -> Value:
        return self.f.fields(self.f.params[0], PoolArgs, "power")[0]

    def _ended(self, sums: Sequence[Value], taps: TapRanges) -> list[Value]:
        f, form = self.f, self.form
        match form.reduction:
            case "max":
                return list(sums)
            case "lp":
                return [take_root(f, x, self._power) for x in sums]
            case "average":
                (counts_pads,) = f.fields(f.params[0], PoolArgs, "counts_pads")
                inside, padded = f.const(1), f.const(1)
                for axis, at, (low, high) in zip(self.axes, self.at, taps, strict=True):
                    inside = inside * (high - low)
                    first, last = axis.taps(f, at, with_pads=True)
                    padded = padded * (last - first)
                count = f.select(counts_pads.compare("ne", 0), padded, inside)
                share = f.const(1.0, ELEMENTS[form.dtype]) / f.cast("sitofp", count, ELEMENTS[form.dtype])
                return [x * _like(f, share, x.type) for x in sums]


_NOWHERE = -1
"""The position of a maximum before the first tap."""


def combine_tap(f: Function, form: PoolForm, old: Value, x: Value, power: Value) -> Value:
    """Combine the result of a reduction so far with one more tap."""
    match form.reduction:
        case "average":
            return old + x
        case "lp":
            return old + _power(f, x, power)
        case "max" if form.dtype.startswith("float") and not form.has_indices:
            # Only one comparison depends on the maximum so far: x86's max, which keeps a NaN there; the other
            # checks x.
            return f.select(x.compare("uno", x), x, f.select(x > old, x, old))
        case "max":
            return f.select(_keeps_maximum(f, old, x, form.dtype), old, x)


def first_value(f: Function, form: PoolForm, type_: str) -> Value:
    """The initial value of a reduction."""
    if form.reduction != "max":
        return f.const(0.0, type_)
    match form.dtype:
        case "float32" | "float64":
            return f.const(float("-inf"), type_)
        case "uint8":
            return f.const(0, type_)
        case _:
            return f.const(-(1 << (int(scalar(type_)[1:]) - 1)), type_)


def _keeps_maximum(f: Function, old: Value, x: Value, dtype: str) -> Value:
    """Whether the maximum so far is kept: the first one on a tie, and any NaN."""
    if dtype == "uint8":
        return f.op(f"icmp uge {old}, {x.text}", _bools(old.type))
    if dtype.startswith("float"):
        return (old >= x) | old.compare("uno", old)
    return old >= x


def _bools(type_: str) -> str:
    return vector(int(type_[1:].split(" ")[0]), "i1") if type_.startswith("<") else "i1"


def _index(
    f: Function, args: Value, first: Value, place: Value, axes: tuple[WindowAxis, WindowAxis, WindowAxis]
) -> Value:
    """The ONNX index of a position: row-major, or with the last dimension slowest within the plane."""
    (is_column_major,) = f.fields(args, PoolArgs, "is_column_major")
    d, h, w = axes
    row, column = place // w.size, place % w.size
    turned = (column * h.size + row % h.size) * d.size + row // h.size
    return first + f.select(is_column_major.compare("ne", 0), turned, place)


def _power(f: Function, x: Value, p: Value) -> Value:
    """|x| ** p for an integer p >= 1."""
    size = f.intrinsic("llvm.fabs", x.type, x)
    with f.loop(1, p, carry=[size]) as loop:
        loop.carry([loop.carried[0] * size])
    return loop.carried[0]


def take_root(f: Function, x: Value, p: Value) -> Value:
    """x ** (1 / p): x itself, its square root, or by Newton's method from above; NaN and infinity stay."""

    def newton() -> list[Value]:
        order = _like(f, f.cast("sitofp", p, scalar(x.type)), x.type)
        # The start exceeds the root by less than a factor of 4, which p steps at least halve.
        with f.loop(0, p * 3 + 8, carry=[_power_of_two_above(f, x, p)]) as loop:
            y = loop.carried[0]
            with f.loop(2, p, carry=[y]) as power:
                power.carry([power.carried[0] * y])
            following = y - (y - x / power.carried[0]) / order
            loop.carry([f.select(following < y, following, y)])
        return [f.select((x > 0.0) & (x < inf), loop.carried[0], x)]

    def simple() -> list[Value]:
        return f.choose(p.compare("eq", 2), lambda: [f.intrinsic("llvm.sqrt", x.type, x)], lambda: [x])

    return f.choose(p > 2, newton, simple)[0]


def _power_of_two_above(f: Function, x: Value, p: Value) -> Value:
    """2 ** (exponent of x // p + 1), which is above x ** (1 / p)."""
    integer, mantissa, bias = ("i32", 23, 127) if scalar(x.type) == "float" else ("i64", 52, 1023)
    type_ = x.type.replace(scalar(x.type), integer)
    divisor = _like(f, p if integer == "i64" else f.cast("trunc", p, integer), type_)
    exponent = (f.cast("bitcast", x, type_) >> mantissa) - bias
    # Truncation already rounds a negative quotient up.
    whole = exponent // divisor + 1
    return f.cast("bitcast", (whole + bias) << mantissa, x.type)


def _like(f: Function, x: Value, type_: str) -> Value:
    return f.splat(x, int(type_[1:].split(" ")[0])) if type_.startswith("<") else x
