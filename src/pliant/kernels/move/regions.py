"""Pool regions of images to a fixed size by bilinear samples (ONNX RoiAlign)."""

import ctypes

from pliant.kernels.emit import elementary
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.move.index_gather import IndexFault, check_index

MAX_SAMPLES = 1 << 12
"""The most samples along one side of a cell, which limits the time for an unreasonably large region."""


class RegionArgs(ctypes.Structure):
    """target[r, c, y, x] = region r of image `batch[r]`, all float32 and dense; regions are x1, y1, x2, y2.

    `samples` along each side of a cell, or 0 for as many as the cell has pixels; `offset` is subtracted from
    the scaled corners; sides have at least the length `least`.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        ("batch", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("images", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("out_height", ctypes.c_int64),
        ("out_width", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("least", ctypes.c_float),
        ("fault", IndexFault),
    )


def regions_ir(isa: Isa, name: str, is_max: bool) -> str:
    """The kernel with RegionArgs; a unit is one channel of one region. It computes the mean over a cell's
    samples, or the largest weighted pixel.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, regions, batch, target = f.fields(args, RegionArgs, "source", "regions", "batch", "target")
        images, channels, height, width = f.fields(args, RegionArgs, "images", "channels", "height", "width")
        sides = f.fields(args, RegionArgs, "out_height", "out_width")
        with f.each(lo, hi) as u:
            r = u // channels
            corners = f.at(regions, r * 4)
            top, cell_height, n_y = _side(f, args, corners, 1, sides[0])
            left, cell_width, n_x = _side(f, args, corners, 0, sides[1])
            which = check_index(f, args, RegionArgs, f.load(f.at(batch, r, "i64"), "i64"), images)
            image = f.at(source, (which * channels + u % channels) * height * width)
            out = f.at(target, u * sides[0] * sides[1])
            with f.each(0, sides[0]) as i, f.each(0, sides[1]) as j:
                y0 = top + f.cast("sitofp", i, "float") * cell_height
                x0 = left + f.cast("sitofp", j, "float") * cell_width
                start = f.const(float("-inf") if is_max else 0.0, "float")
                with f.loop(0, n_y, carry=[start]) as rows:
                    y = y0 + _sample_position(f, rows.index, n_y, cell_height)
                    with f.loop(0, n_x, carry=rows.carried) as columns:
                        x = x0 + _sample_position(f, columns.index, n_x, cell_width)
                        parts = _weigh_pixels(f, image, (y, x), (height, width))
                        total = columns.carried[0]
                        for part in parts:
                            total = f.select(part < total, total, part) if is_max else total + part
                        columns.carry([total])
                    rows.carry(columns.carried)
                count = n_y * n_x
                count = f.select(count < 1, f.const(1), count)
                result = rows.carried[0]
                if is_max:
                    is_none = result.compare("eq", float("-inf"))
                    result = f.select(is_none, f.const(0.0, "float"), result)
                else:
                    result = result / f.cast("sitofp", count, "float")
                f.store(result, f.at(out, i * sides[1] + j))
    return module.text()


def _side(f: Function, args: Value, corners: Value, first: int, cells: Value) -> tuple[Value, Value, Value]:
    """For one side of a region: its start, a cell's length, and samples per cell."""
    scale, offset, least, samples = f.fields(args, RegionArgs, "scale", "offset", "least", "samples")
    start = f.load(f.at(corners, first)) * scale - offset
    length = f.load(f.at(corners, first + 2)) * scale - offset - start
    length = f.select(length < least, least, length)
    cell = length / f.cast("sitofp", cells, "float")
    whole = f.intrinsic("llvm.fptosi.sat", "i64", elementary.ceil(f, cell), suffix=".i64.f32")
    whole = f.least(whole, MAX_SAMPLES)
    return start, cell, f.select(samples > 0, samples, whole)


def _sample_position(f: Function, i: Value, n: Value, cell: Value) -> Value:
    """The position of sample i of n within a cell."""
    return (f.cast("sitofp", i, "float") + 0.5) * cell / f.cast("sitofp", n, "float")


def _weigh_pixels(
    f: Function, image: Value, at: tuple[Value, Value], sizes: tuple[Value, Value]
) -> list[Value]:
    """The four weighted pixels around a position; zeros if it is more than a pixel outside."""
    is_inside = f.const(1, "i1")
    axes = []
    for x, n in zip(at, sizes, strict=True):
        length = f.cast("sitofp", n, "float")
        is_inside = is_inside & (x.compare("ge", -1.0) & (x <= length))
        x = f.select(x.compare("ge", 0.0), x, f.const(0.0, "float"))
        low = f.intrinsic("llvm.fptosi.sat", "i64", x, suffix=".i64.f32")
        is_last = low.compare("ge", n - 1)
        low = f.select(is_last, n - 1, low)
        share = f.select(is_last, f.const(0.0, "float"), x - f.cast("sitofp", low, "float"))
        high = f.select(is_last, low, low + 1)
        axes.append(((low, f.const(1.0, "float") - share), (high, share)))
    parts = []
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            value = f.load(f.at(image, row * sizes[1] + column)) * (row_weight * column_weight)
            parts.append(f.select(is_inside, value, f.const(0.0, "float")))
    return parts
