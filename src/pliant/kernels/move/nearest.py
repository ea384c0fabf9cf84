"""Select rows and columns of an image by given indices: nearest-neighbour resizing."""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.rowcopy import copy
from pliant.kernels.emit.spans import gather, visit_strips
from pliant.kernels.emit.values import Value

SIZES = (1, 2, 4, 8)
"""Pixel sizes in bytes that are moved as one number."""


class NearestArgs(ctypes.Structure):
    """target[o, p, q] = source[o, row_places[p], column_places[q]]; places are int32.

    A pixel has `pixel_bytes`; source is [outer, height, width], target [outer, out_height, out_width].
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("source", "target", "row_places", "column_places")],
        *[(name, ctypes.c_int64) for name in ("height", "width", "out_height", "out_width", "pixel_bytes")],
    )


def nearest_ir(isa: Isa, name: str, size: int | None) -> str:
    """The kernel with NearestArgs; a unit is one output row (o, p); a row equal to the previous one is copied
    from it.

    `size` fixes `pixel_bytes` at one of SIZES.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        names = ("target", "row_places", "out_height", "out_width", "pixel_bytes")
        target, places, out_height, out_width, pixel_bytes = f.fields(args, NearestArgs, *names)
        row_bytes = out_width * (pixel_bytes if size is None else size)
        with f.each(lo, hi) as unit:
            p, y = unit % out_height, f.at(target, unit * row_bytes, "i8")
            place = f.load(f.at(places, p, "i32"), "i32")
            has_before = (unit > lo) & (p > 0)
            before = f.load(f.at(places, f.select(has_before, p - 1, p), "i32"), "i32")

            def again(y: Value = y) -> list[Value]:
                copy(f, f.at(y, -row_bytes, "i8"), y, row_bytes)
                return []

            def anew(unit: Value = unit, place: Value = place, y: Value = y) -> list[Value]:
                _choose_columns(f, unit // out_height, f.cast("sext", place, "i64"), y, size)
                return []

            f.choose(has_before & before.compare("eq", place), again, anew)
    return module.text()


def _choose_columns(f: Function, image: Value, place: Value, y: Value, size: int | None) -> None:
    """One output row, from row `place` of an image."""
    names = ("source", "column_places", "height", "width", "out_width", "pixel_bytes")
    source, places, height, width, out_width, pixel_bytes = f.fields(f.params[0], NearestArgs, *names)
    first = (image * height + place) * width
    if size is None:
        with f.each(0, out_width) as q:
            column = f.cast("sext", f.load(f.at(places, q, "i32"), "i32"), "i64")
            x = f.at(source, (first + column) * pixel_bytes, "i8")
            copy(f, x, f.at(y, q * pixel_bytes, "i8"), pixel_bytes)
        return
    type_ = "float" if size == 4 else f"i{8 * size}"
    row = f.at(source, first, type_)

    def visit(q: Value, lanes: int, count: int) -> None:
        f.store(gather(f, row, f.at(places, q, "i32"), lanes, type_), f.at(y, q, type_))

    visit_strips(f, out_width, visit, lanes=0 if size == 4 else 1)
