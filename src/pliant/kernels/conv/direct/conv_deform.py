"""Deformable convolution: every tap of every output pixel reads at an offset position, interpolated between
four pixels.

It computes one multiplication at a time: supports every shape, but is not fast. Two dimensions, float32,
channels first.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

DEFORM = "conv_deform"


class DeformArgs(ctypes.Structure):
    """y = convolution of x at offset positions; float32, contiguous, with the names of ONNX's DeformConv.

    `bias` and `mask` may be null. A unit is an output channel of one image.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "w", "offset", "bias", "mask", "y")],
        *[
            (name, ctypes.c_int64)
            for name in (
                *("channels", "outs", "groups", "offset_groups"),
                *("in_h", "in_w", "out_h", "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w"),
                *("dilation_h", "dilation_w", "pad_h", "pad_w"),
            )
        ],
    )


def deform_ir(isa: Isa) -> str:
    """The kernel `conv_deform` with DeformArgs."""
    module = Module(isa)
    with module.kernel(DEFORM) as f:
        args, lo, hi, _ = f.params
        (outs,) = f.fields(args, DeformArgs, "outs")
        with f.each(lo, hi) as unit:
            _write_plane(f, unit // outs, unit % outs)
    return module.text()


def _write_plane(f: Function, image: Value, out: Value) -> None:
    args = f.params[0]
    x, w, offset, bias, mask, y = f.fields(args, DeformArgs, "x", "w", "offset", "bias", "mask", "y")
    channels, outs, groups, moved = f.fields(args, DeformArgs, "channels", "outs", "groups", "offset_groups")
    in_h, in_w, out_h, out_w = f.fields(args, DeformArgs, "in_h", "in_w", "out_h", "out_w")
    kernel_h, kernel_w = f.fields(args, DeformArgs, "kernel_h", "kernel_w")
    depth, taps, pixels = channels // groups, kernel_h * kernel_w, out_h * out_w
    first = out // (outs // groups) * depth
    zero = f.const(0.0, "float")
    start = f.choose(bias.compare("ne", 0), lambda: [f.load(f.at(bias, out))], lambda: [zero])[0]
    with f.each(0, out_h) as oh, f.each(0, out_w) as ow:
        pixel = oh * out_w + ow
        with f.loop(0, depth, carry=[start]) as c:
            channel = first + c.index
            plane = f.at(x, (image * channels + channel) * in_h * in_w)
            part = image * moved + channel // (channels // moved)
            with f.loop(0, taps, carry=c.carried) as t:
                number = part * taps + t.index
                by = [f.load(f.at(offset, (number * 2 + axis) * pixels + pixel)) for axis in (0, 1)]
                h = _place(f, "h", oh, t.index // kernel_w) + by[0]
                v = _place(f, "w", ow, t.index % kernel_w) + by[1]
                value = _interpolate(f, plane, h, v, in_h, in_w)
                weight = f.load(f.at(w, (out * depth + c.index) * taps + t.index))

                def masked(at: Value = number * pixels + pixel) -> list[Value]:
                    return [f.load(f.at(mask, at))]

                share = f.choose(mask.compare("ne", 0), masked, lambda: [f.const(1.0, "float")])[0]
                t.carry([t.carried[0] + value * weight * share])
            c.carry(t.carried)
        f.store(c.carried[0], f.at(y, (image * outs + out) * pixels + pixel))


def _place(f: Function, axis: str, at: Value, tap: Value) -> Value:
    """The position of a tap without its offset."""
    stride, dilation, pad = f.fields(
        f.params[0], DeformArgs, f"stride_{axis}", f"dilation_{axis}", f"pad_{axis}"
    )
    return f.cast("sitofp", at * stride + tap * dilation - pad, "float")


def _interpolate(f: Function, plane: Value, h: Value, v: Value, height: Value, width: Value) -> Value:
    """The image interpolated between four pixels; zero outside, and for a NaN position."""
    (top, down), (left, right) = _split_position(f, h, height), _split_position(f, v, width)
    total = f.const(0.0, "float")
    for row, share_h in ((top, -down + 1.0), (top + 1, down)):
        for column, share_v in ((left, -right + 1.0), (left + 1, right)):
            inside = [f.op(f"icmp ult {i}, {n.text}", "i1") for i, n in ((row, height), (column, width))]

            def pixel(row: Value = row, column: Value = column) -> list[Value]:
                return [f.load(f.at(plane, row * width + column))]

            value = f.choose(inside[0] & inside[1], pixel, lambda: [f.const(0.0, "float")])[0]
            total = total + value * share_h * share_v
    return total


def _split_position(f: Function, at: Value, size: Value) -> tuple[Value, Value]:
    """The pixel below a position and the distance from it; positions far outside are clamped to just
    outside.
    """
    most = f.cast("sitofp", size + 1, "float")
    at = f.select(at > -2.0, at, f.const(-2.0, "float"))
    at = f.select(at < most, at, most)
    # Adding 2 makes it positive, so that truncation rounds down.
    whole = f.cast("fptosi", at + 2.0, "i64") - 2
    return whole, at - f.cast("sitofp", whole, "float")
