"""Emit code for one spatial dimension of a window over an image: its start and the taps inside.

Works on any argument structure with the fields `in_h`, `out_h`, `kernel_h`, `stride_h`, `dilation_h`,
`pad_h`, `end_pad_h`, and so on for d and w.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value

AXES = ("d", "h", "w")
NUMBERS = ("in", "out", "kernel", "stride", "dilation", "pad", "end_pad")

FIELDS = tuple((f"{name}_{axis}", ctypes.c_int64) for name in NUMBERS for axis in AXES)
"""The fields of an argument structure."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One spatial dimension's numbers."""

    size: Value
    out: Value
    kernel: Value
    stride: Value
    dilation: Value
    pad: Value
    end_pad: Value

    @staticmethod
    def of(f: Function, args: Value, layout: type[ctypes.Structure], axis: str) -> "WindowAxis":
        """The numbers of `axis` in the structure at `args`."""
        return WindowAxis(*f.fields(args, layout, *(f"{name}_{axis}" for name in NUMBERS)))

    def start(self, at: Value) -> Value:
        """The input position of the first tap of output position `at`; negative in the pad."""
        return at * self.stride - self.pad

    def taps(self, f: Function, at: Value, with_pads: bool = False) -> tuple[Value, Value]:
        """First tap inside and one past the last; with pads, relative to the padded image."""
        start = self.start(at)
        zero = f.const(0)
        low, high = zero, self.size - start
        if with_pads:
            high = high + self.end_pad
        else:
            low = f.select(start < 0, self._steps(f, -start), zero)
        high = f.select(high > 0, self._steps(f, high), zero)
        return low, f.least(high, self.kernel)

    def _steps(self, f: Function, distance: Value) -> Value:
        """The number of taps in a distance. It avoids the division, which is seldom needed and slower than a
        small window.
        """

        def divided() -> list[Value]:
            return [(distance + self.dilation - 1) // self.dilation]

        return f.choose(self.dilation.compare("eq", 1), lambda: [distance], divided)[0]

    def inner_range(self, f: Function, step: int) -> tuple[Value, Value]:
        """Output positions low..stop-1 whose windows are inside; their number is a multiple of `step`."""
        low = f.least((self.pad + self.stride - 1) // self.stride, self.out)
        room = self.size - 1 - (self.kernel - 1) * self.dilation + self.pad
        high = f.least(f.select(room < 0, f.const(0), room // self.stride + 1), self.out)
        high = f.select(high > low, high, low)
        return low, low + (high - low) // step * step
