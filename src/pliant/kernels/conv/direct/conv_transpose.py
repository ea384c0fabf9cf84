"""Sum the products of a transposed convolution: those of all taps and input pixels that contribute to an
output pixel.

The products, [group][output channel][tap][input pixel], are computed by a plain convolution's kernel.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

CONV_TRANSPOSE = "conv_transpose_add"
_AXES = ("d", "h", "w")
_GROUPS = ("in", "out", "kernel", "stride", "dilation", "pad")


class ConvTransposeArgs(ctypes.Structure):
    """y[image][channel][pixel] = bias + the products that contribute to the pixel; float32, `bias` may be
    null.

    `products` are [image][channels * taps][input pixel]. A unit is an output channel of one image.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("products", "bias", "y")],
        ("channels", ctypes.c_int64),
        *[(f"{name}_{axis}", ctypes.c_int64) for name in _GROUPS for axis in _AXES],
    )


def conv_transpose_ir(isa: Isa) -> str:
    """The kernel `conv_transpose_add` with ConvTransposeArgs."""
    module = Module(isa)
    with module.kernel(CONV_TRANSPOSE) as f:
        args, lo, hi, _ = f.params
        (channels,) = f.fields(args, ConvTransposeArgs, "channels")
        with f.each(lo, hi) as unit:
            _write_plane(f, unit // channels, unit % channels)
    return module.text()


def _write_plane(f: Function, image: Value, channel: Value) -> None:
    args = f.params[0]
    products, bias, y, channels = f.fields(args, ConvTransposeArgs, "products", "bias", "y", "channels")
    sizes, places, kernel, strides, dilations, pads = (
        f.fields(args, ConvTransposeArgs, *(f"{name}_{axis}" for axis in _AXES)) for name in _GROUPS
    )
    taps = kernel[0] * kernel[1] * kernel[2]
    (start,) = f.choose(
        bias.compare("ne", 0), lambda: [f.load(f.at(bias, channel))], lambda: [f.const(0.0, "float")]
    )
    plane = image * channels + channel
    pixels = sizes[0] * sizes[1] * sizes[2]

    def meets(axis: int, out: Value, tap: Value) -> tuple[Value, Value]:
        """The input position whose tap contributes to an output position, and whether there is one."""
        at = out + pads[axis] - tap * dilations[axis]
        place = at // strides[axis]
        exact = (place * strides[axis]).compare("eq", at) & (at >= 0)
        return place, exact & (place < sizes[axis])

    with f.each(0, places[0]) as od, f.each(0, places[1]) as oh:
        row = ((plane * places[0] + od) * places[1] + oh) * places[2]
        with f.each(0, places[2]) as ow:
            f.store(start, f.at(y, row + ow))
        with f.each(0, kernel[0]) as kd, f.each(0, kernel[1]) as kh:
            (d, in_d), (h, in_h) = meets(0, od, kd), meets(1, oh, kh)
            with f.when(in_d & in_h), f.each(0, kernel[2]) as kw:
                tap = (kd * kernel[1] + kh) * kernel[2] + kw
                first = (plane * taps + tap) * pixels + (d * sizes[1] + h) * sizes[2]
                before = pads[2] - kw * dilations[2]  # output positions before the first product
                low = f.select(before > 0, (before + strides[2] - 1) // strides[2], f.const(0))
                last = places[2] - 1 + before
                high = f.select(last >= 0, f.least(last // strides[2] + 1, sizes[2]), f.const(0))
                with f.each(low, high) as w:
                    at = f.at(y, row + w * strides[2] - before)
                    f.store(f.load(at) + f.load(f.at(products, first + w)), at)
