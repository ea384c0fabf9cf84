"""Convolution of bytes with zero points, summed in int32, with int32 results or scaled to bytes again.

It computes one multiplication at a time: supports every shape, but is not fast. Channels first.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

_AXES = ("d", "h", "w")
_GROUPS = ("in", "out", "kernel", "stride", "dilation", "pad")
# Adding it leaves the nearest integer, ties to even, in a float below 2**22.
_ROUNDER = 12582912.0


class QuantizedConvArgs(ctypes.Structure):
    """sum of (x - x_zero) * (w - w_zero) over the window, + bias int32; w's parameters may differ by channel.

    Addresses of zero points and bias may be null. `*_step` is 1 if w has a scale or zero point per output
    channel, else 0. A unit is an output channel of one image.
    """

    _fields_ = (
        *[
            (name, ctypes.c_void_p)
            for name in (
                *("x", "w", "bias", "y", "x_zero", "w_zero", "y_zero"),
                *("x_scale", "w_scale", "y_scale"),
            )
        ],
        *[(name, ctypes.c_int64) for name in ("channels", "outs", "groups", "w_zero_step", "w_scale_step")],
        *[(f"{name}_{axis}", ctypes.c_int64) for name in _GROUPS for axis in _AXES],
    )


@dataclass(frozen=True, slots=True)
class QuantizedConvForm:
    """Whether x and w are signed bytes, and y: signed or unsigned bytes, or None for the int32 sums."""

    x_is_signed: bool
    w_is_signed: bool
    y_is_signed: bool | None

    @property
    def name(self) -> str:
        signs = {True: "i8", False: "u8", None: "i32"}
        return "_".join(["conv", *(signs[s] for s in (self.x_is_signed, self.w_is_signed, self.y_is_signed))])


def quantized_conv_ir(isa: Isa, form: QuantizedConvForm) -> str:
    """The kernel `form.name` with QuantizedConvArgs."""
    module = Module(isa)
    with module.kernel(form.name) as f:
        args, lo, hi, _ = f.params
        (outs,) = f.fields(args, QuantizedConvArgs, "outs")
        with f.each(lo, hi) as unit:
            _write_plane(f, form, unit // outs, unit % outs)
    return module.text()


def _write_plane(f: Function, form: QuantizedConvForm, image: Value, out: Value) -> None:
    args = f.params[0]
    x, w, bias, y = f.fields(args, QuantizedConvArgs, "x", "w", "bias", "y")
    channels, outs, groups = f.fields(args, QuantizedConvArgs, "channels", "outs", "groups")
    sizes, places, kernel, strides, dilations, pads = (
        f.fields(args, QuantizedConvArgs, *(f"{name}_{axis}" for axis in _AXES)) for name in _GROUPS
    )
    (step,) = f.fields(args, QuantizedConvArgs, "w_zero_step")
    x_zero = _zero(f, "x_zero", form.x_is_signed, f.const(0))
    w_zero = _zero(f, "w_zero", form.w_is_signed, out * step)
    depth = channels // groups
    taps = kernel[0] * kernel[1] * kernel[2]
    plane = sizes[0] * sizes[1] * sizes[2]
    first = image * channels + out // (outs // groups) * depth
    start = f.choose(
        bias.compare("ne", 0), lambda: [f.load(f.at(bias, out, "i32"), "i32")], lambda: [f.const(0, "i32")]
    )[0]
    pixels = places[0] * places[1] * places[2]
    finish = _OutputWriter(f, form, out)
    with f.each(0, places[0]) as od, f.each(0, places[1]) as oh, f.each(0, places[2]) as ow:
        with f.loop(0, depth, carry=[start]) as c:
            with f.loop(0, taps, carry=c.carried) as t:
                tap = (
                    t.index // (kernel[1] * kernel[2]),
                    t.index // kernel[2] % kernel[1],
                    t.index % kernel[2],
                )
                at = [
                    o * stride + k * dilation - pad
                    for o, stride, k, dilation, pad in zip(
                        (od, oh, ow), strides, tap, dilations, pads, strict=True
                    )
                ]
                inside = [f.op(f"icmp ult {i}, {n.text}", "i1") for i, n in zip(at, sizes, strict=True)]

                def product(c: Value = c.index, t: Value = t.index, at: list[Value] = at) -> list[Value]:
                    place = (at[0] * sizes[1] + at[1]) * sizes[2] + at[2]
                    a = _widen(f, f.load(f.at(x, (first + c) * plane + place, "i8"), "i8"), form.x_is_signed)
                    b = _widen(f, f.load(f.at(w, (out * depth + c) * taps + t, "i8"), "i8"), form.w_is_signed)
                    return [(a - x_zero) * (b - w_zero)]

                term = f.choose(inside[0] & inside[1] & inside[2], product, lambda: [f.const(0, "i32")])[0]
                t.carry([t.carried[0] + term])
            c.carry(t.carried)
        place = (od * places[1] + oh) * places[2] + ow
        finish(c.carried[0], y, (image * outs + out) * pixels + place)


def _zero(f: Function, name: str, is_signed: bool, index: Value) -> Value:
    """A zero point as i32; 0 if there is none."""
    (at,) = f.fields(f.params[0], QuantizedConvArgs, name)

    def given() -> list[Value]:
        return [_widen(f, f.load(f.at(at, index, "i8"), "i8"), is_signed)]

    return f.choose(at.compare("ne", 0), given, lambda: [f.const(0, "i32")])[0]


class _OutputWriter:
    """Stores a sum: unchanged, or scaled, rounded, shifted and clipped to a byte's range."""

    def __init__(self, f: Function, form: QuantizedConvForm, out: Value) -> None:
        self.f, self.is_signed = f, form.y_is_signed
        if form.y_is_signed is None:
            return
        x_scale, w_scale, y_scale, step = f.fields(
            f.params[0], QuantizedConvArgs, "x_scale", "w_scale", "y_scale", "w_scale_step"
        )
        self.scale = f.load(x_scale) * f.load(f.at(w_scale, out * step)) / f.load(y_scale)
        self.zero = f.cast("sitofp", _zero(f, "y_zero", form.y_is_signed, f.const(0)), "float")

    def __call__(self, total: Value, y: Value, at: Value) -> None:
        f = self.f
        if self.is_signed is None:
            f.store(total, f.at(y, at, "i32"))
            return
        low, high = (-128.0, 127.0) if self.is_signed else (0.0, 255.0)
        scaled = _clamp(f, f.cast("sitofp", total, "float") * self.scale, -1e6, 1e6)
        moved = _clamp(f, (scaled + _ROUNDER) - _ROUNDER + self.zero, low, high)
        f.store(f.cast("trunc", f.cast("fptosi", moved, "i32"), "i8"), f.at(y, at, "i8"))


def _widen(f: Function, byte: Value, is_signed: bool) -> Value:
    return f.cast("sext" if is_signed else "zext", byte, "i32")


def _clamp(f: Function, x: Value, low: float, high: float) -> Value:
    x = f.select(x > low, x, f.const(low, x.type))
    return f.select(x > high, f.const(high, x.type), x)
