"""The bitwidths at which a store keeps a shard, a plan may run it, and users ask for weights."""

from typing import Literal

from pliant.errors import InputError

PLANES = 6  # bit-planes of a shard: its codes have so many bits
FULL_BITS = 32  # a shard in the checkpoint's own precision, whatever that is
BITS = (*range(1, PLANES + 1), FULL_BITS)
LOWEST_BITS = 2  # below two bits a submodel answers at random (STI 5.4.3 starts at 2)
BYTE_BITS = 8  # weights in bytes, with a scale for each column of a matrix; no shard is kept so
Weights = Literal["fp32", "auto"] | int
"""`"fp32"`, bytes (8), bits of the store's code, 1 to 6, or `"auto"`: what fits into the memory."""


def check_weights(weights: Weights, *, has_bytes: bool = True) -> None:
    """Raise InputError for what are no weights; bytes are some where it `has_bytes`."""
    known = ("fp32", "auto", *range(1, PLANES + 1), *((BYTE_BITS,) if has_bytes else ()))
    if type(weights) not in (int, str) or weights not in known:
        more = f"1 to {PLANES}, or {BYTE_BITS}" if has_bytes else f"or 1 to {PLANES}"
        raise InputError(f"there are no weights of {weights!r} bits here; give 'fp32', 'auto', {more}.")
