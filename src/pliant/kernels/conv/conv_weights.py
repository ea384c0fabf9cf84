"""Pack a convolution's weights into panels of 16 output channels: with numpy, or with a kernel at run time.

The order of the depth is (kernel d, h, w, channel).
"""

import ctypes

import numpy as np

from pliant.arrays import Float
from pliant.kernels.conv.conv_tile import COLUMNS, UNROLL
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa

PACK = "conv_pack"


class PackArgs(ctypes.Structure):
    """float32 w[group][out channel][channel][tap] and b[groups * out_channels], or null, into panels.

    The strides of w's dimensions are in floats; the stride of a tap is 1. A unit is a panel: `packed`
    [groups][panels][padded_depth][16], `bias` [groups][panels * 16].
    """

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("panels", ctypes.c_int64),
        ("out_channels", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("group_step", ctypes.c_int64),
        ("row_step", ctypes.c_int64),
        ("channel_step", ctypes.c_int64),
        ("padded_depth", ctypes.c_int64),
    )


def padded(depth: int) -> int:
    """The depth, padded for the tiles."""
    return -(-depth // UNROLL) * UNROLL


def n_panels(out_channels: int) -> int:
    return -(-out_channels // COLUMNS)


def pack(
    w: Float[np.ndarray, "outs channels *taps"], groups: int
) -> Float[np.ndarray, "groups panels depth 16"]:
    """The weights of `groups` groups as panels."""
    outs, channels = w.shape[0] // groups, w.shape[1]
    taps = int(np.prod(w.shape[2:]))
    depth, panels = channels * taps, n_panels(outs)
    rows = np.zeros((groups, panels * COLUMNS, padded(depth)), np.float32)
    rows[:, :outs, :depth] = (
        w.reshape(groups, outs, channels, taps).transpose(0, 1, 3, 2).reshape(groups, outs, -1)
    )
    return np.ascontiguousarray(rows.reshape(groups, panels, COLUMNS, -1).transpose(0, 1, 3, 2))


def pack_bias(b: Float[np.ndarray, "outs"] | None, outs: int, groups: int) -> Float[np.ndarray, "groups n"]:
    """The bias of each panel, zero if there is none."""
    n = outs // groups
    rows = np.zeros((groups, n_panels(n) * COLUMNS), np.float32)
    if b is not None:
        rows[:, :n] = b.reshape(groups, n)
    return rows


def pack_ir(isa: Isa) -> str:
    """The kernel `conv_pack` with PackArgs, for weights that are known only at run time."""
    module = Module(isa)
    with module.kernel(PACK) as f:
        args, lo, hi, _ = f.params
        w, b, packed, bias = f.fields(args, PackArgs, "w", "b", "packed", "bias")
        panels, outs, channels, taps, depth = f.fields(
            args, PackArgs, "panels", "out_channels", "channels", "taps", "padded_depth"
        )
        steps = f.fields(args, PackArgs, "group_step", "row_step", "channel_step")
        zero = f.const(0.0, "float")
        with f.each(lo, hi) as unit:
            group, panel = unit // panels, unit % panels
            to = f.at(packed, unit * depth * COLUMNS)
            with f.each(0, depth * COLUMNS) as i:
                f.store(zero, f.at(to, i))
            with f.each(0, COLUMNS) as column:
                f.store(zero, f.at(bias, unit * COLUMNS + column))
                channel = panel * COLUMNS + column
                with f.when(channel < outs):
                    row = group * outs + channel
                    with f.when(b.compare("ne", 0)):
                        f.store(f.load(f.at(b, row)), f.at(bias, unit * COLUMNS + column))
                    source = f.at(w, group * steps[0] + channel * steps[1])
                    with f.each(0, channels) as c, f.each(0, taps) as t:
                        value = f.load(f.at(source, c * steps[2] + t))
                        f.store(value, f.at(to, (t * channels + c) * COLUMNS + column))
    return module.text()
