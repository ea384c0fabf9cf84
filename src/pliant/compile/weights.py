"""A layer's weights as kernels are told of them: descriptors of its slices. Knows addresses only."""

from collections.abc import Sequence

import numpy as np

from pliant.kernels.decode import decode_table, decode_table_int8, int8_scale
from pliant.kernels.gemm_args import BF16, F16, F32, SLICE_DTYPE
from pliant.kernels.isa import Isa
from pliant.models.slices import SliceGeometry
from pliant.models.spec import Precision
from pliant.store.encode import ResidentLayer

FULL_BITS = 32
FULL_PART = 6
_FULL_CODE: dict[Precision, int] = {"F16": F16, "BF16": BF16, "F32": F32}


class Weights:
    """The slices of one layer: SLICE_DTYPE [n_heads], and one decode table for each bitwidth."""

    def __init__(
        self, geometry: SliceGeometry, precision: Precision, resident: ResidentLayer, isa: Isa, compute: str
    ) -> None:
        self.resident = resident
        self.scale = int8_scale(resident.codebooks[max(resident.codebooks)])
        self._plane_bytes = geometry.plane_bytes
        self._full_bytes = geometry.full_bytes(precision)
        self._tables = {
            k: decode_table(book, k, isa)
            if compute == "fp32"
            else decode_table_int8(book, k, isa, self.scale)
            for k, book in resident.codebooks.items()
        }
        # What a number of bits means to a kernel, and where its table is.
        self._codes = np.zeros(FULL_BITS + 1, np.int64)
        self._table_at = np.zeros(FULL_BITS + 1, np.uint64)
        for k, table in self._tables.items():
            self._codes[k], self._table_at[k] = k, table.ctypes.data
        self._codes[FULL_BITS] = _FULL_CODE[precision]
        rows = resident.outlier_rows
        self.slices = np.zeros(len(rows), SLICE_DTYPE)
        self.slices["outlier_rows"] = rows.ctypes.data + rows.strides[0] * np.arange(len(rows))
        self.slices["outlier_offsets"] = resident.outlier_offsets.ctypes.data
        self.slices["outlier_values"] = resident.outlier_values.ctypes.data

    @property
    def n_bytes(self) -> int:
        return int(self.slices.nbytes) + sum(t.nbytes for t in self._tables.values())

    def place(self, part: int, first: int, count: int, address: int) -> None:
        """Slices `first` .. `first + count - 1` of `part` begin at `address`, one behind the other."""
        size = self._full_bytes if part == FULL_PART else self._plane_bytes
        at = address + size * np.arange(count, dtype=np.uint64)
        if part == FULL_PART:
            self.slices["full"][first : first + count] = at
        else:
            self.slices["planes"][first : first + count, part] = at

    def set_bits(self, bits: Sequence[int] | np.ndarray) -> None:
        """The leading slices run with `bits`, each 1..6 or 32."""
        row = np.asarray(bits)
        self.slices["bits"][: len(row)] = self._codes[row]
        self.slices["table"][: len(row)] = self._table_at[row]
