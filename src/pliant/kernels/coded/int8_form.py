"""The layout of integers in the int8 GEMM of each ISA, and its reasons."""

from dataclasses import dataclass

from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.integer_dots import left_is_signed


@dataclass(frozen=True, slots=True)
class Int8Form:
    """Steps: `activation` to either side of 0, `centroid` in a layer's largest, `weight` at most.

    Bytes of activations have a zero point a row and are at least `lowest`: 2 * activation + 1 steps lie
    between a row's extremes. Outliers between `centroid` and `weight` are weights like others; what is left
    of larger ones is added in float32.
    """

    is_bytes: bool
    activation: int
    lowest: int
    centroid: int
    weight: int

    @property
    def packing(self) -> int:
        """Rows of K in one i32 word."""
        return 4 if self.is_bytes else 2


def int8_form(isa: Isa) -> Int8Form:
    """Bytes where the CPU multiplies bytes; on plain x86-64 int16, which it multiplies as fast.

    `vpmaddubsw` saturates sums of two products at 16 bits, and two such sums are added before they widen:
    4 * 127 * 63 = 32004 leaves no room for more. VNNI and Arm's dot
    product widen at once and take whole bytes.
    """
    if isa.has_dot:
        return Int8Form(True, 127, -128 if left_is_signed(isa) else 0, 85, 127)
    if isa.name in ("x86-64", "neon"):
        return Int8Form(False, 2047, 0, 127, 32767)
    return Int8Form(True, 63, 0, 42, 63)
