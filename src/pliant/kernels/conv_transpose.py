"""Gather the products of a transposed convolution: which taps of which input pixels meet an output pixel.

The products themselves, [input pixel][group][output channel][tap], come from a plain convolution's kernel.
Knows no graph.
"""

import ctypes

from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.values import Value

GATHER = "conv_transpose_gather"
_AXES = ("d", "h", "w")
_GROUPS = ("in", "out", "kernel", "stride", "dilation", "pad")


class GatherArgs(ctypes.Structure):
    """y[image][channel][pixel] = bias + the products that fall on the pixel; float32, `bias` may be null.

    `products` are [image][input pixel][channels * taps]. A unit is an output channel of one image.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("products", "bias", "y")],
        ("channels", ctypes.c_int64),
        *[(f"{name}_{axis}", ctypes.c_int64) for name in _GROUPS for axis in _AXES],
    )


def gather_ir(isa: Isa) -> str:
    """The kernel `conv_transpose_gather` with GatherArgs."""
    module = Module(isa)
    with module.kernel(GATHER) as f:
        args, lo, hi, _ = f.params
        (channels,) = f.fields(args, GatherArgs, "channels")
        with f.each(lo, hi) as unit:
            _write_plane(f, unit // channels, unit % channels)
    return module.text()


def _write_plane(f: Function, image: Value, channel: Value) -> None:
    args = f.params[0]
    products, bias, y, channels = f.fields(args, GatherArgs, "products", "bias", "y", "channels")
    sizes, places, kernel, strides, dilations, pads = (
        f.fields(args, GatherArgs, *(f"{name}_{axis}" for axis in _AXES)) for name in _GROUPS
    )
    taps = kernel[0] * kernel[1] * kernel[2]
    start = f.choose(
        bias.compare("ne", 0), lambda: [f.load(f.at(bias, channel))], lambda: [f.const(0.0, "float")]
    )[0]
    first = image * (sizes[0] * sizes[1] * sizes[2])

    def meets(axis: int, out: Value, tap: Value) -> tuple[Value, Value]:
        """The input place whose tap falls on an output place, and whether there is one."""
        at = out + pads[axis] - tap * dilations[axis]
        place = at // strides[axis]
        exact = (place * strides[axis]).compare("eq", at) & (at >= 0)
        return place, exact & (place < sizes[axis])

    with f.each(0, places[0]) as od, f.each(0, places[1]) as oh, f.each(0, places[2]) as ow:
        with f.loop(0, kernel[0], carry=[start]) as kd:
            with f.loop(0, kernel[1], carry=kd.carried) as kh:
                with f.loop(0, kernel[2], carry=kh.carried) as kw:
                    found = [meets(0, od, kd.index), meets(1, oh, kh.index), meets(2, ow, kw.index)]
                    (d, in_d), (h, in_h), (w, in_w) = found
                    tap = (kd.index * kernel[1] + kh.index) * kernel[2] + kw.index
                    pixel = first + (d * sizes[1] + h) * sizes[2] + w

                    def product(pixel: Value = pixel, tap: Value = tap) -> list[Value]:
                        return [f.load(f.at(products, (pixel * channels + channel) * taps + tap))]

                    term = f.choose(in_d & in_h & in_w, product, lambda: [f.const(0.0, "float")])[0]
                    kw.carry([kw.carried[0] + term])
                kh.carry(kw.carried)
            kd.carry(kh.carried)
        place = (od * places[1] + oh) * places[2] + ow
        f.store(
            kd.carried[0], f.at(y, (image * channels + channel) * (places[0] * places[1] * places[2]) + place)
        )
