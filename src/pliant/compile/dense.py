"""A plain float32 linear layer on the GEMM kernel. Knows one matrix, no store."""

import numpy as np

from pliant.compile.kernels import Kernels
from pliant.kernels import gemm
from pliant.kernels.gemm_args import ACTIVATIONS, F32, SLICE_DTYPE, GemmArgs
from pliant.kernels.pool import Pool, Table
from pliant.models.slices import GROUP_COLUMNS, GROUP_ROWS
from pliant.store.files import Linear


class Dense:
    """y = activation(x W^T + b) for up to `tokens` rows; the input is padded to 32 columns, zeros behind."""

    def __init__(
        self, linear: Linear, activation: str | None, x: np.ndarray, tokens: int, kernels: Kernels, pool: Pool
    ) -> None:
        n_out, n_in = linear.weight.shape
        rows, columns = _pad(n_in, GROUP_ROWS), _pad(n_out, GROUP_ROWS)
        matrix = np.zeros((rows, columns), np.float32)
        matrix[:n_in, :n_out] = linear.weight.T
        bias = np.zeros(columns, np.float32)
        bias[:n_out] = linear.bias
        self.y = np.zeros((tokens, columns), np.float32)
        self.n_out = n_out
        self._pool, self._kernels = pool, kernels
        packed = gemm.pack(matrix)
        outlier_rows = np.zeros(columns // GROUP_COLUMNS + 1, np.uint32)
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["full"] = F32, packed.ctypes.data
        slices["outlier_rows"] = outlier_rows.ctypes.data
        self._alive = (packed, bias, slices, outlier_rows, x)
        self._args = GemmArgs(
            a=x.ctypes.data,
            lda=x.strides[0] // 4,
            c=self.y.ctypes.data,
            ldc=columns,
            n_columns=columns,
            slices=slices.ctypes.data,
            segment_rows=rows,
            n_segments=1,
            column_groups_per_slice=columns // GROUP_COLUMNS,
            bias=bias.ctypes.data,
            activation=ACTIVATIONS[activation],
        )
        self._table = Table()
        self._table.add(kernels.gemm, self._args, 1)

    @property
    def n_bytes(self) -> int:
        """Bytes of the packed weights and the output."""
        return int(self._alive[0].nbytes + self._alive[1].nbytes + self.y.nbytes)

    def run(self, n_rows: int) -> np.ndarray:
        """The result for the first `n_rows` rows of x: float32 [n_rows, n_out], valid until the next run."""
        self._args.n_rows = n_rows
        columns = self._args.ldc
        isa = self._kernels.isa
        self._table.resize(
            0, gemm.units(columns, isa), gemm.grain(columns, n_rows, isa, self._pool.n_threads)
        )
        self._pool.walk(self._table)
        return self.y[:n_rows, : self.n_out]


def _pad(n: int, to: int) -> int:
    return -(-n // to) * to
