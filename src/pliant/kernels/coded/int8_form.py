"""The layout of integers in the int8 GEMM of each ISA, and its reasons."""

from dataclasses import dataclass, replace

from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.integer_dots import left_is_signed


@dataclass(frozen=True, slots=True)
class Int8Form:
    """Steps: `activation` to either side of 0, `centroid` in a layer's largest, `weight` at most.

    Bytes of activations have a zero point a row and are at least `lowest`: 2 * activation + 1 steps lie
    between a row's extremes. Outliers between `centroid` and `weight` are weights like others; what is left
    of larger ones is added in float32.

    `together` are the words of K whose products of bytes are added in 16 bits, before they widen. Weights
    that are `is_resident` stand as bytes in memory, with a scale for each column, and have no outliers.
    """

    is_bytes: bool
    activation: int
    lowest: int
    centroid: int
    weight: int
    together: int = 1
    is_resident: bool = False

    @property
    def packing(self) -> int:
        """Rows of K in one i32 word of A."""
        return 4 if self.is_bytes else 2

    @property
    def is_widened(self) -> bool:
        """Whether bytes of weights become int16 as they are read."""
        return self.is_resident and not self.is_bytes

    @property
    def word(self) -> str:
        """What a word of B is in memory."""
        return "i16" if self.is_widened else "i32"


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
    return Int8Form(True, 63, 0, 42, 63, together=2)


def resident_form(isa: Isa) -> Int8Form:
    """For weights of a byte that are read as they are: the most steps that sums hold.

    `vpmaddubsw` adds two products in 16 bits, which each word then widens by itself. 173 steps of an
    activation and 94 to either side of a weight, 2 * 173 * 94 = 32524, share the room so that both round
    about as much: on BERT-base at random 0.0122 of the answer each; 255 and 63 steps 0.0083 and 0.0182.
    """
    form = int8_form(isa)
    if not form.is_bytes:
        return replace(form, weight=127, is_resident=True)
    if isa.has_dot:
        return replace(form, is_resident=True)
    return replace(form, activation=86, weight=94, together=1, is_resident=True)
