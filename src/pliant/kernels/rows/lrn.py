"""Local response normalisation across channels, float32."""

import ctypes

from pliant.kernels.emit import elementary
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, visit_columns
from pliant.kernels.emit.values import Value

LRN = "lrn"


class LrnArgs(ctypes.Structure):
    """out = x / (bias + alpha / size * sum of squares over channels c - before .. c + after) ** beta.

    x and out are float32 [n, channels, inner]; a unit is one channel of one n.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("before", ctypes.c_int64),
        ("after", ctypes.c_int64),
        ("bias", ctypes.c_float),
        ("share", ctypes.c_float),
        ("beta", ctypes.c_float),
    )


def lrn_ir(isa: Isa) -> str:
    """`lrn` with LrnArgs; `share` is alpha / size."""
    module = Module(isa)
    with module.kernel(LRN) as f:
        args, lo, hi, _ = f.params
        names = ("x", "out", "channels", "inner", "before", "after", "bias", "share", "beta")
        x, out, channels, inner, before, after, *numbers = f.fields(args, LrnArgs, *names)
        with f.each(lo, hi) as unit:
            channel = unit % channels
            first = channel - f.least(channel, before)
            stop = f.least(channel + after + 1, channels)
            image = f.at(x, (unit - channel) * inner)
            here = f.at(x, unit * inner), f.at(out, unit * inner)
            _write_channel(f, image, here, (first, stop, inner), numbers)
    return module.text()


def _write_channel(
    f: Function,
    image: Value,
    here: tuple[Value, Value],
    extents: tuple[Value, Value, Value],
    numbers: list[Value],
) -> None:
    first, stop, inner = extents
    bias, share, beta = (f.splat(number) for number in numbers)

    def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
        with f.loop(first, stop, carry=[f.const(0.0, f.vec)]) as loop:
            x = span.load(f.at(image, loop.index * inner))
            loop.carry([f.fma(x, x, loop.carried[0])])
        base = f.fma(share, loop.carried[0], bias)
        span.store(span.load(here[0]) / elementary.power(f, base, beta), here[1])
        return []

    visit_columns(f, inner, visit)
