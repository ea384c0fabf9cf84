"""The epilogue of a convolution's block in scratch: residual, activation, y's layout.

A block is one panel of 16 channels times some pixels, [pixel][16].
"""

import ctypes
from collections.abc import Sequence

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvArgs, ConvForm
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.conv.transpose_planes import transpose_square
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.values import Value, vector

_PARAMS = [
    ("args", "ptr"),
    ("c", "ptr"),
    ("count", "i64"),  # of pixels
    ("channels", "i64"),  # at most 16
    ("y", "ptr"),  # the first pixel of the first channel
    ("residual", "ptr"),
]


def write_finish(
    module: Module,
    form: ConvForm,
    layout: type[ctypes.Structure] = ConvArgs,
    lanes_last: Sequence[int] = (8, 4),
) -> None:
    """Define `finish`, which moves a panel from scratch to y; `layout` has ConvArgs's fields of these names.

    If y's channels are last, `lanes_last` channels are moved at a time.
    """
    with module.function("finish", _PARAMS, attributes="noinline", is_exported=False) as f:
        args, c, count, channels, y, residual = f.params
        pixels, y_channels = f.fields(args, layout, "pixels", "y_channels")
        pixel_step, channel_step = (f.const(1), pixels) if form.y == "nchw" else (y_channels, f.const(1))

        def end(x: Value, at: Value, lanes: int = f.lanes) -> None:
            if form.has_residual:
                x = x + f.load(f.at(residual, at), x.type)
            # Read here, after the pinned square: kept in registers over all of it, they would not fit.
            low, high = f.fields(args, layout, "low", "high")
            bounds = [b if x.type == "float" else f.splat(b, lanes) for b in (low, high)]
            f.store(ACTIVATIONS[form.activation](f, x, *bounds), f.at(y, at))

        whole = count - count % f.lanes if form.y == "nchw" else f.const(0)
        if form.y == "nchw":
            with f.each(0, whole, f.lanes) as pixel:
                for first in range(0, COLUMNS, f.lanes):
                    block = f.at(c, pixel * COLUMNS + first)
                    rows = [f.load(f.at(block, i * COLUMNS), f.vec, 4 * f.lanes) for i in range(f.lanes)]
                    # Pinned, else LLVM moves shuffles into the branches for existing channels, and more
                    # values are alive.
                    for i, x in enumerate(f.pin(transpose_square(f, rows))):
                        with f.when(channels > first + i):
                            end(x, channel_step * (first + i) + pixel)
        done = f.const(0)
        for lanes in (*(n for n in lanes_last if n <= f.lanes and form.y == "nhwc"), 1):
            type_, stop = vector(lanes, "float") if lanes > 1 else "float", channels - channels % lanes
            with f.each(done, stop, lanes) as channel, f.each(whole, count) as pixel:
                x = f.load(f.at(c, pixel * COLUMNS + channel), type_)
                end(x, channel * channel_step + pixel * pixel_step, lanes)
            done = stop
        f.ret()
