"""Weighted sums of positions along one or two axes: interpolation with precomputed weights."""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, convert, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import gather, visit_strips
from pliant.kernels.emit.values import Value, vector

_CHAINS = 4


class ResampleArgs(ctypes.Structure):
    """target[o, p, q, i] = the sum over rows s and columns t of weights times source[o, place s, place t, i].

    source is [outer, height, width, inner], target [outer, out_height, out_width, inner]. Each resampled axis
    has places (int32) and weights (float32) [taps, n], and shifts [n] that are added.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("source", "target")],
        *[(f"row_{name}", ctypes.c_void_p) for name in ("places", "weights", "shifts")],
        *[(f"column_{name}", ctypes.c_void_p) for name in ("places", "weights", "shifts")],
        *[(name, ctypes.c_int64) for name in ("height", "width", "out_height", "out_width")],
        *[(name, ctypes.c_int64) for name in ("inner", "row_taps", "column_taps")],
    )


@dataclass(frozen=True, slots=True)
class ResampleForm:
    """The compile-time parameters of a resampling; an axis that is not resampled keeps its length.

    `is_wide`: vectors run along `inner` when columns are resampled, otherwise along columns.
    """

    dtype: str
    has_rows: bool
    has_columns: bool
    is_wide: bool

    @property
    def name(self) -> str:
        axes = "rows" * self.has_rows + "columns" * self.has_columns
        return f"resample_{self.dtype}_{axes}{'_wide' * self.is_wide}"

    @property
    def sums(self) -> str:
        """The type of sums, also of the row results in scratch."""
        return "float64" if self.dtype == "float64" else "float32"


def resample_ir(isa: Isa, form: ResampleForm) -> str:
    """The kernel `form.name`: a unit is one output row (o, p).

    Sums are float32 (float64 for float64); integers are rounded toward zero and saturate.
    """
    module = Module(isa)
    with module.kernel(form.name) as f:
        _, lo, hi, _ = f.params
        with f.each(lo, hi) as unit:
            _write_row(f, form, unit)
    return module.text()


def _write_row(f: Function, form: ResampleForm, unit: Value) -> None:
    args, _, _, scratch = f.params
    names = ("source", "target", "height", "width", "out_height", "out_width", "inner")
    source, target, height, width, out_height, out_width, inner = f.fields(args, ResampleArgs, *names)
    stored, sums = DTYPES[form.dtype], DTYPES[form.sums]
    widest = f.lanes if form.dtype == "float32" else 1

    def row(type_: Dtype, start: Value, index: Value) -> _Row:
        return _Row(f, type_, sums, f.at(start, index, type_.memory))

    first = unit // out_height * height if form.has_rows else unit
    x, y = row(stored, source, first * width * inner), row(stored, target, unit * out_width * inner)
    if form.has_rows:
        made = row(sums, scratch, f.const(0)) if form.has_columns else y
        _resample_along(
            f, _Taps.of(f, form, "row", out_height), unit % out_height, x, width * inner, made, widest
        )
        x = made
    if form.has_columns:
        taps = _Taps.of(f, form, "column", out_width)
        if not form.is_wide:
            _resample_columns(f, taps, x, y, widest)
            return
        with f.each(0, out_width) as q:
            _resample_along(f, taps, q, x, inner, row(stored, y.start, q * inner), widest)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of numbers of one type, converted from and to the type of sums."""

    f: Function
    dtype: Dtype
    sums: Dtype
    start: Value

    def load(self, index: Value, lanes: int) -> Value:
        """`lanes` elements from `index` on."""
        type_ = vector(lanes, self.dtype.memory) if lanes > 1 else self.dtype.memory
        return self._to_sums(self.f.load(self.f.at(self.start, index, self.dtype.memory), type_))

    def gather(self, places: Value, lanes: int) -> Value:
        return self._to_sums(gather(self.f, self.start, places, lanes, self.dtype.memory))

    def store(self, value: Value, index: Value) -> None:
        if self.dtype.kind != "float":
            value = convert(self.f, value, self.sums, self.dtype)
        self.f.store(narrow(self.f, value, self.dtype), self.f.at(self.start, index, self.dtype.memory))

    def _to_sums(self, raw: Value) -> Value:
        value = widen(self.f, raw, self.dtype)
        return value if self.dtype.kind == "float" else convert(self.f, value, self.dtype, self.sums)


@dataclass(frozen=True, slots=True)
class _Taps:
    """The taps of the positions along one axis."""

    f: Function
    sums: Dtype
    places: Value
    weights: Value
    shifts: Value
    n: Value
    taps: Value

    @staticmethod
    def of(f: Function, form: ResampleForm, axis: str, n: Value) -> "_Taps":
        names = (*(f"{axis}_{name}" for name in ("places", "weights", "shifts")), f"{axis}_taps")
        places, weights, shifts, taps = f.fields(f.params[0], ResampleArgs, *names)
        return _Taps(f, DTYPES[form.sums], places, weights, shifts, n, taps)

    def place(self, tap: Value, position: Value) -> Value:
        found = self.f.load(self.f.at(self.places, tap * self.n + position, "i32"), "i32")
        return self.f.cast("sext", found, "i64")

    def place_at(self, tap: Value, position: Value) -> Value:
        """The address of the places of `position` and the following positions."""
        return self.f.at(self.places, tap * self.n + position, "i32")

    def weight(self, tap: Value, position: Value, lanes: int = 1) -> Value:
        """The weights of `position` and the following positions."""
        return self._number(self.f.at(self.weights, tap * self.n + position), lanes)

    def shift(self, position: Value, lanes: int = 1) -> Value:
        return self._number(self.f.at(self.shifts, position), lanes)

    def _number(self, at: Value, lanes: int) -> Value:
        value = self.f.load(at, vector(lanes, "float") if lanes > 1 else "float")
        return convert(self.f, value, DTYPES["float32"], self.sums)


def _resample_along(
    f: Function, taps: _Taps, position: Value, x: _Row, step: Value, y: _Row, widest: int
) -> None:
    """y[i] = the shift of one position plus its taps over x[place * step + i], for i below `step`."""

    def visit(first: Value, lanes: int, count: int) -> None:
        offsets = [first + i * lanes for i in range(count)]

        def splat(value: Value) -> Value:
            return f.splat(value, lanes) if lanes > 1 else value

        with f.loop(0, taps.taps, carry=[splat(taps.shift(position))] * count) as loop:
            line = taps.place(loop.index, position) * step
            weight = splat(taps.weight(loop.index, position))
            parts = [x.load(line + offset, lanes) for offset in offsets]
            loop.carry([f.fma(part, weight, s) for part, s in zip(parts, loop.carried, strict=True)])
        for total, offset in zip(loop.carried, offsets, strict=True):
            y.store(total, offset)

    visit_strips(f, step, visit, lanes=widest, chains=_CHAINS)


def _resample_columns(f: Function, taps: _Taps, x: _Row, y: _Row, widest: int) -> None:
    """y[q] = the shift of every position q plus its taps over x[place]."""

    def visit(first: Value, lanes: int, count: int) -> None:
        with f.loop(0, taps.taps, carry=[taps.shift(first, lanes)]) as loop:
            weight = taps.weight(loop.index, first, lanes)
            part = x.gather(taps.place_at(loop.index, first), lanes)
            loop.carry([f.fma(part, weight, loop.carried[0])])
        y.store(loop.carried[0], first)

    visit_strips(f, taps.n, visit, lanes=widest)
