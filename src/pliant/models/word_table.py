"""A word-embedding table stored in 6-bit codes."""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float32, Integer, UInt8
from pliant.errors import ModelError

TABLE_BITS = 6


@dataclass(frozen=True, slots=True)
class QuantizedTable:
    """An embedding table of 64 levels, in bit-planes.

    `codes` holds, per row, plane 0 (most significant) to plane 5; bit j (of value 2**j) of byte i of
    a plane belongs to column 8i + j. Bits past the last column are zero. `codebook[c]` is the value
    of code c. A row is TABLE_BITS * ceil(columns / 8) bytes.
    """

    codes: UInt8[np.ndarray, "rows 6 column_bytes"]
    codebook: Float32[np.ndarray, "64"]
    columns: int

    def __post_init__(self) -> None:
        expected = (TABLE_BITS, -(-self.columns // 8))
        if self.codes.ndim != 3 or self.codes.shape[1:] != expected or self.codes.dtype != np.uint8:
            raise ModelError(
                f"codes of a table of {self.columns} columns are U8 [rows, {expected[0]}, {expected[1]}], "
                f"but these are {self.codes.dtype} {list(self.codes.shape)}."
            )
        if self.codebook.shape != (1 << TABLE_BITS,) or self.codebook.dtype != np.float32:
            raise ModelError(
                f"a table's codebook is F32 [{1 << TABLE_BITS}], but this one is "
                f"{self.codebook.dtype} {list(self.codebook.shape)}."
            )
        if not np.isfinite(self.codebook).all():
            raise ModelError("a table's codebook holds NaN or infinity; write the checkpoint again.")

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0])

    def decode(self, rows: Integer[np.ndarray, " n"]) -> Float32[np.ndarray, "n columns"]:
        """The embedding vectors of `rows` (token ids); an id outside the table is an IndexError."""
        bits = np.unpackbits(self.codes[rows], axis=2, count=self.columns, bitorder="little")
        weights = (1 << np.arange(TABLE_BITS - 1, -1, -1)).astype(np.uint8)
        vectors: np.ndarray = self.codebook[np.einsum("nqc,q->nc", bits, weights)]
        return vectors

    def decode_all(self) -> Float32[np.ndarray, "rows columns"]:
        """The whole table in float32, decoded in blocks to limit memory."""
        out = np.empty((self.rows, self.columns), np.float32)
        for start in range(0, self.rows, 1024):
            block = np.arange(start, min(start + 1024, self.rows))
            out[block] = self.decode(block)
        return out


def pack_codes(codes: UInt8[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows 6 column_bytes"]:
    """Codes 0..63 as the bit-planes of `QuantizedTable`: the inverse of what `decode` unpacks."""
    if codes.size and int(codes.max()) >= 1 << TABLE_BITS:
        raise ModelError(f"code {int(codes.max())} does not fit {TABLE_BITS} bits.")
    planes = [(codes >> (TABLE_BITS - 1 - q)) & 1 for q in range(TABLE_BITS)]
    return np.packbits(np.stack(planes, axis=1), axis=2, bitorder="little")
