"""The integer formats of the int8 GEMM on each ISA, with the reasons."""

from dataclasses import dataclass, replace

from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.integer_dots import left_is_signed

MOST_SUM = 2**31 - 1
"""The largest sum of products, int32."""
MOST_DEPTH = MOST_SUM // (255 * 127)
"""The most rows of K for integer products: sums of the largest bytes fit int32."""


@dataclass(frozen=True, slots=True)
class Int8Form:
    """Steps: activations have `activation` steps on each side of 0, a layer's largest centroid has `centroid`
    steps, a weight at most `weight`.

    Bytes of activations have a zero point per row and are at least `lowest`: there are 2 * activation + 1
    steps between a row's extremes. Outliers of up to `most_steps` are treated as other weights; the remainder
    of larger ones is added in float32.

    `words_per_widening` is the number of words of K whose byte products are added in 16 bits before widening.
    With `is_resident`, weights are stored as bytes with a scale per column, and have no outliers.

    int16 activations of rows longer than 8260 have fewer steps (`levels`).
    """

    is_bytes: bool
    activation: int
    lowest: int
    centroid: int
    weight: int
    words_per_widening: int = 1
    is_resident: bool = False

    @property
    def steps(self) -> int:
        """Steps of the largest centroid of a matrix that has a code of its own."""
        return min(self.weight, 127)

    @property
    def packing(self) -> int:
        """Rows of K in one i32 word of A."""
        return 4 if self.is_bytes else 2

    def levels(self, depth: int) -> int:
        """Steps between 0 and a row's extreme, or for bytes between both: sums over `depth` weights of
        `centroid` steps fit int32, for bytes up to MOST_DEPTH.
        """
        if self.is_bytes:
            return 2 * self.activation + 1
        return min(self.activation, MOST_SUM // (self.centroid * depth))

    def most_steps(self, depth: int) -> int:
        """The most steps of an outlier in sums over `depth` weights: as int32 must hold the sums of any, an
        int16 weight may have fewer than `weight`.
        """
        return self.weight if self.is_bytes else min(self.weight, MOST_SUM // (self.levels(depth) * depth))

    @property
    def is_widened(self) -> bool:
        """Whether byte weights are widened to int16 when they are read."""
        return self.is_resident and not self.is_bytes

    @property
    def word(self) -> str:
        """The type of a word of B in memory."""
        return "i16" if self.is_widened else "i32"


def int8_form(isa: Isa) -> Int8Form:
    """Bytes if the CPU multiplies bytes; int16 on plain x86-64, which multiplies them as fast.

    `vpmaddubsw` saturates sums of two products at 16 bits, and two such sums are added before widening: 4 *
    127 * 63 = 32004 is the largest possible. VNNI and Arm's dot product widen at once and use whole bytes.
    """
    if isa.has_dot:
        return Int8Form(True, 127, -128 if left_is_signed(isa) else 0, 85, 127)
    if isa.name in ("x86-64", "neon"):
        return Int8Form(False, 2047, 0, 127, 32767)
    return Int8Form(True, 63, 0, 42, 63, words_per_widening=2)


def resident_form(isa: Isa) -> Int8Form:
    """The format for resident byte weights: the most steps that sums can hold.

    `vpmaddubsw` adds two products in 16 bits, which are then widened per word. 173 steps of an activation and
    94 on each side of a weight, 2 * 173 * 94 = 32524, divide the range such that both have about the same
    rounding error: on a random BERT-base 0.0122 of the answer each; with 255 and 63 steps 0.0083 and 0.0182.
    """
    form = int8_form(isa)
    if not form.is_bytes:
        return replace(form, weight=127, is_resident=True)
    if isa.has_dot:
        return replace(form, is_resident=True)
    return replace(form, activation=86, weight=94, words_per_widening=1, is_resident=True)
