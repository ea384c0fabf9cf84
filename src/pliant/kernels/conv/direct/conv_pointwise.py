"""1x1 convolution in groups between channels-first images, float32: adjacent pixels in a vector.

A plane of x already is a row of the product, so that nothing is copied. A unit is a block of pixels of one
image and group. A register tile of output channels times vectors of pixels reads each pixel once for all
channels of the tile, and each weight once for all its pixels.
"""

import ctypes
from dataclasses import dataclass
from functools import partial

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

_MOST_VECTORS = 6
_INTEGERS = (
    "groups",
    "channels",  # of x, in one group
    "outs",  # channels of y, in one group
    "blocks",  # of output channels, in one group
    "pixels",  # of one image
    "unit_pixels",
    "pixel_blocks",
)


class PointwiseArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual), float32.

    `weights` are [groups][blocks][channel][rows] and `bias` [groups][blocks][rows], by the rows of the form;
    the last block of a group may overlap the previous one. `residual`, in y's layout, may be null unless the
    form has one.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "residual", "y")],
        *[(name, ctypes.c_int64) for name in _INTEGERS],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class PointwiseForm:
    """The compile-time parameters of such a convolution; a tile has `rows` output channels."""

    rows: int
    activation: str = ""
    has_residual: bool = False

    @property
    def name(self) -> str:
        ends = [self.activation] if self.activation else []
        return "_".join(["points", *ends, *["residual"] * self.has_residual, f"{self.rows}r"])


def tile_vectors(isa: Isa, rows: int) -> int:
    """Vectors of pixels in a tile: as many as leave registers for the pixels and a weight."""
    return max(min((isa.registers - 1) // (rows + 1), _MOST_VECTORS), 1)


def pointwise_ir(isa: Isa, form: PointwiseForm) -> str:
    """The kernel `form.name` with PointwiseArgs; images have at least as many pixels as a vector."""
    module = Module(isa)
    most = tile_vectors(isa, form.rows)
    for vectors in range(1, most + 1):
        _write_tile(module, form, vectors)
    _write_pixel(module, form)
    with module.kernel(form.name) as f, f.each(f.params[1], f.params[2]) as unit:
        _write_unit(f, form, unit, most)
    return module.text()


def _write_unit(f: Function, form: PointwiseForm, unit: Value, most: int) -> None:
    args = f.params[0]
    groups, channels, outs, blocks = f.fields(args, PointwiseArgs, "groups", "channels", "outs", "blocks")
    pixels, unit_pixels, pixel_blocks = f.fields(args, PointwiseArgs, "pixels", "unit_pixels", "pixel_blocks")
    x, weights, bias, residual, y = f.fields(args, PointwiseArgs, "x", "weights", "bias", "residual", "y")
    part = unit // pixel_blocks
    group = part % groups
    # A part shorter than a vector begins earlier, and recomputes some pixels.
    first = f.least(unit % pixel_blocks * unit_pixels, pixels - f.lanes)
    count = f.least(unit_pixels, pixels - first)
    x, to = f.at(x, part * channels * pixels + first), part * outs * pixels + first

    def multiply(tile: str, pixel: Value, *more: Value) -> None:
        with f.each(0, blocks) as block:
            row, number = f.least(block * form.rows, outs - form.rows), group * blocks + block
            w, start = f.at(weights, number * channels * form.rows), f.at(bias, number * form.rows)
            at = to + row * pixels + pixel
            ends = f.at(y, at), f.at(residual, at)
            f.call(tile, "void", args, f.at(x, pixel), w, start, *ends, *more)

    step = most * f.lanes
    whole = count - count % step
    with f.each(0, whole, step) as pixel:
        multiply(f"tile{most}", pixel, f.const(step - f.lanes))
    left = count - whole
    odd = left % f.lanes
    # A pixel takes about two steps for each channel of x, and a vector one for each row.
    single = f.select(odd * 2 < form.rows, odd, f.const(0))
    vectors = (left - single + (f.lanes - 1)) // f.lanes
    last = left - single - f.lanes
    f.match(vectors, {n: partial(multiply, f"tile{n}", whole, last) for n in range(1, most + 1)})
    with f.each(count - single, count) as pixel:
        multiply("pixel", pixel)


def _write_tile(module: Module, form: PointwiseForm, vectors: int) -> None:
    """`tile`: vectors of pixels, of which the last begins `last` pixels after the first."""
    params = [(name, "ptr") for name in ("args", "x", "w", "bias", "y", "residual")]
    with module.function(
        f"tile{vectors}", [*params, ("last", "i64")], attributes="noinline", is_exported=False
    ) as f:
        args, x, w, bias, y, residual, last = f.params
        channels, pixels, low, high = f.fields(args, PointwiseArgs, "channels", "pixels", "low", "high")
        starts = [f.const(v * f.lanes) for v in range(vectors - 1)] + [last]
        sums = [f.splat(f.load(f.at(bias, row))) for row in range(form.rows) for _ in starts]
        with f.loop(0, channels, carry=sums) as channel:
            plane, taps = f.at(x, channel.index * pixels), f.at(w, channel.index * form.rows)
            read = [f.load(f.at(plane, start), f.vec) for start in starts]
            now = list(channel.carried)
            for row in range(form.rows):
                weight = f.splat(f.load(f.at(taps, row)))
                for v, value in enumerate(read):
                    now[row * vectors + v] = f.fma(weight, value, now[row * vectors + v])
            channel.carry(now)
        bounds = f.splat(low), f.splat(high)
        places = [pixels * row + start for row in range(form.rows) for start in starts]
        for total, at in zip(channel.carried, places, strict=True):
            if form.has_residual:
                total = total + f.load(f.at(residual, at), f.vec)
            f.store(ACTIVATIONS[form.activation](f, total, *bounds), f.at(y, at))
        f.ret()


def _write_pixel(module: Module, form: PointwiseForm) -> None:
    """`pixel`: one pixel of a block, its rows in a vector; two sums, to overlap their latencies."""
    params = [(name, "ptr") for name in ("args", "x", "w", "bias", "y", "residual")]
    with module.function("pixel", params, attributes="noinline", is_exported=False) as f:
        args, x, w, bias, y, residual = f.params
        channels, pixels, low, high = f.fields(args, PointwiseArgs, "channels", "pixels", "low", "high")
        rows = vector(form.rows, "float")

        def product(channel: Value, total: Value) -> Value:
            value = f.splat(f.load(f.at(x, channel * pixels)), form.rows)
            return f.fma(value, f.load(f.at(w, channel * form.rows), rows), total)

        even = channels - channels % 2
        with f.loop(0, even, 2, carry=[f.load(f.at(bias, 0), rows), f.const(0.0, rows)]) as loop:
            first, second = loop.carried
            loop.carry([product(loop.index, first), product(loop.index + 1, second)])
        with f.loop(even, channels, carry=[loop.carried[0] + loop.carried[1]]) as odd:
            odd.carry([product(odd.index, odd.carried[0])])
        for row in range(form.rows):
            total, at = f.extract(odd.carried[0], row), pixels * row
            if form.has_residual:
                total = total + f.load(f.at(residual, at))
            f.store(ACTIVATIONS[form.activation](f, total, low, high), f.at(y, at))
        f.ret()
