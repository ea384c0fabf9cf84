"""The bitwidths of shards in stores and plans, and of weights that users request."""

from typing import Literal

from pliant.errors import InputError

PLANES = 6  # bit-planes of a shard, that is, bits of its codes
FULL_BITS = 32  # a shard in the checkpoint's own precision
BITS = (*range(1, PLANES + 1), FULL_BITS)
LOWEST_BITS = 2  # below two bits a submodel answers at random (STI 5.4.3 starts at 2)
BYTE_BITS = 8  # weights in bytes, with one scale per column of a matrix; not a format of shards
WeightFormat = Literal["fp32", "auto"] | int
"""`"fp32"`, bytes (8), bits of the store's code (1 to 6), or `"auto"`: what fits into memory."""


def check_weights(weights: WeightFormat, *, has_bytes: bool = True) -> None:
    """Raise InputError for invalid weights; bytes are valid if it `has_bytes`."""
    known = ("fp32", "auto", *range(1, PLANES + 1), *((BYTE_BITS,) if has_bytes else ()))
    if type(weights) not in (int, str) or weights not in known:
        more = f"1 to {PLANES}, or {BYTE_BITS}" if has_bytes else f"or 1 to {PLANES}"
        raise InputError(f"there are no weights of {weights!r} bits here; give 'fp32', 'auto', {more}.")
