"""Convolution of a channels-first image with few channels to a channels-last one; float32.

It serves the first layer of a network: with three channels a pixel is too short to be copied as a row of a
matrix. A unit is one output row of one image: the input rows that it reads are copied to scratch with zeros
around them, and a register tile of adjacent pixels reads its values from there.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_tile import COLUMNS, tile_pixels
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

MARGIN = 16
"""Extra floats after a row in scratch, since whole vectors are written."""

_INTEGERS = (
    "rows",  # channels * kernel_h
    "in_h",
    "in_w",
    "out_h",
    "out_w",
    "kernel_h",
    "stride_h",
    "pad_h",
    "pad_w",
    "width",  # columns that the windows of a row cover, including pads
    "copied",  # of these, the columns inside the image; at least a vector
    "panels",
    "padded_depth",
)


class PlanesArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias): x [images][channels][h][w], y [images][h][w][panels * 16].

    `weights` are [panels][padded_depth][16], the depth in the order (channel, kernel h, kernel w). A row of y
    has at least as many pixels as a tile.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "y")],
        *[(name, ctypes.c_int64) for name in _INTEGERS],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class PlanesForm:
    """The compile-time parameters of such a convolution."""

    kernel_w: int
    stride_w: int
    activation: str = ""

    @property
    def name(self) -> str:
        ends = [self.activation] if self.activation else []
        return "_".join(["planes", f"{self.kernel_w}w", f"{self.stride_w}s", *ends])


def row_floats(width: int) -> int:
    """The row stride in scratch, in floats."""
    return (width + MARGIN) // MARGIN * MARGIN + MARGIN


def planes_ir(isa: Isa, form: PlanesForm) -> str:
    """The kernel `form.name` with PlanesArgs."""
    module = Module(isa)
    _write_tile(module, form)
    with module.kernel(form.name) as f, f.each(f.params[1], f.params[2]) as unit:
        _fill(f, unit)
        _multiply(f, form, unit)
    return module.text()


def _row_step(width: Value) -> Value:
    return (width + MARGIN) // MARGIN * MARGIN + MARGIN


def _fill(f: Function, unit: Value) -> None:
    """scratch[channel * kernel_h + tap]: the input rows of the output row, zero outside the image."""
    args, _, _, scratch = f.params
    x, rows, in_h, in_w, out_h, kernel_h = f.fields(
        args, PlanesArgs, "x", "rows", "in_h", "in_w", "out_h", "kernel_h"
    )
    stride, pad_h, pad_w, width, copied = f.fields(
        args, PlanesArgs, "stride_h", "pad_h", "pad_w", "width", "copied"
    )
    first = unit // out_h * (rows // kernel_h)
    zero, step = f.const(0.0, f.vec), _row_step(width)
    with f.each(0, rows) as row:
        to = f.at(scratch, row * step)
        h = unit % out_h * stride - pad_h + row % kernel_h
        source = f.at(x, ((first + row // kernel_h) * in_h + h) * in_w)

        def copy(to: Value = to, source: Value = source) -> list[Value]:
            with f.each(0, pad_w, f.lanes) as i:
                f.store(zero, f.at(to, i))
            inside = f.at(to, pad_w)
            with f.each(0, copied, f.lanes) as i:
                at = f.least(i, copied - f.lanes)
                f.store(f.load(f.at(source, at), f.vec), f.at(inside, at))
            with f.each(pad_w + copied, width, f.lanes) as i:
                f.store(zero, f.at(to, i))
            return []

        def clear(to: Value = to) -> list[Value]:
            with f.each(0, width, f.lanes) as i:
                f.store(zero, f.at(to, i))
            return []

        f.choose(f.op(f"icmp ult {h}, {in_h.text}", "i1"), copy, clear)


def _multiply(f: Function, form: PlanesForm, unit: Value) -> None:
    """Compute all panels of the output row, tile by tile."""
    args, _, _, scratch = f.params
    weights, bias, y, out_w, panels, depth = f.fields(
        args, PlanesArgs, "weights", "bias", "y", "out_w", "panels", "padded_depth"
    )
    full = tile_pixels(f.isa)
    with f.each(0, panels) as panel:
        b, start = f.at(weights, panel * depth * COLUMNS), f.at(bias, panel * COLUMNS)
        with f.each(0, out_w, full) as pixel:
            ow = f.least(pixel, out_w - full)  # the last tile may repeat some pixels
            to = f.at(y, (unit * out_w + ow) * (panels * COLUMNS) + panel * COLUMNS)
            f.call("tile", "void", args, f.at(scratch, ow * form.stride_w), b, start, to)


def _write_tile(module: Module, form: PlanesForm) -> None:
    """`tile`: a few adjacent pixels times one panel, over all rows in scratch."""
    params = [(name, "ptr") for name in ("args", "a", "b", "bias", "y")]
    with module.function("tile", params, attributes="noinline", is_exported=False) as f:
        args, a, b, bias, y = f.params
        rows, width, panels, low, high = f.fields(args, PlanesArgs, "rows", "width", "panels", "low", "high")
        vectors = range(0, COLUMNS, f.lanes)
        places = [(i, v) for i in range(tile_pixels(f.isa)) for v in vectors]
        start = {v: f.load(f.at(bias, v), f.vec) for v in vectors}
        step = _row_step(width)
        with f.loop(0, rows, carry=[start[v] for _, v in places]) as loop:
            now = list(loop.carried)
            row, taps = f.at(a, loop.index * step), f.at(b, loop.index * (form.kernel_w * COLUMNS))
            for tap in range(form.kernel_w):
                columns = {v: f.load(f.at(taps, tap * COLUMNS + v), f.vec) for v in vectors}
                for i in range(tile_pixels(f.isa)):
                    x = f.splat(f.load(f.at(row, i * form.stride_w + tap)))
                    for n, (pixel, v) in enumerate(places):
                        if pixel == i:
                            now[n] = f.fma(x, columns[v], now[n])
                now = now if f.isa.name == "avx512" else f.pin(now)
            loop.carry(now)
        bounds = f.splat(low), f.splat(high)
        for (i, v), total in zip(places, loop.carried, strict=True):
            done = ACTIVATIONS[form.activation](f, total, *bounds)
            f.store(done, f.at(y, panels * (i * COLUMNS) + v))
        f.ret()
