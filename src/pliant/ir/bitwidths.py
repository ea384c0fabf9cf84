"""The bitwidths at which a store keeps a shard, a plan may run it, and users ask for weights."""

from typing import Literal

from pliant.errors import InputError

PLANES = 6  # bit-planes of a shard: its codes have so many bits
FULL_BITS = 32  # a shard in the checkpoint's own precision, whatever that is
BITS = (*range(1, PLANES + 1), FULL_BITS)
LOWEST_BITS = 2  # below two bits a submodel answers at random (STI 5.4.3 starts at 2)
Weights = Literal["fp32", "auto"] | int
"""`"fp32"`, bits of the store's code, 1 to 6, or `"auto"`: what fits into the memory."""


def check_weights(weights: Weights) -> None:
    """Raise InputError for what are no weights."""
    if type(weights) not in (int, str) or weights not in ("fp32", "auto", *range(1, PLANES + 1)):
        raise InputError(f"weights of {weights!r} bits do not exist; give 'fp32', 'auto' or 1 to {PLANES}.")
