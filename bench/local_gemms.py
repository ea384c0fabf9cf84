"""All GEMMs of a model in one table, from coded or resident weights."""

import time
from collections.abc import Mapping

import numpy as np

from local_layers import Model, is_along_columns
from pliant.kernels.coded.decode import decode_table, decode_table_int8, int8_step
from pliant.kernels.coded.gemm import SLICE_DTYPE, GemmArgs, grain, pack, units
from pliant.kernels.coded.gemm_args import F32
from pliant.kernels.coded.int8.gemm_int8 import GemmInt8Args, grain_int8, units_int8
from pliant.kernels.coded.int8.round_rows import RoundRowsArgs, row_grain
from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.thread_pool import CallTable, ThreadPool
from pliant.models.slice_shapes import MatrixGeometry
from pliant.store.coding.encode_layer import EncodedLayer


class GemmPass:
    """All GEMMs of a model as one table; `seconds()` walks it once."""

    def __init__(self, pool: ThreadPool) -> None:
        self.table = CallTable()
        self.flops = 0
        self._pool = pool
        self._alive: list[object] = []

    def add(self, kernel: int, args: object, n_units: int, grain_: int, *alive: object) -> None:
        self.table.add(kernel, args, n_units, grain_)  # type: ignore[arg-type]
        self._alive.extend(alive)

    def add_gemm(self, kernel: int, args: GemmArgs, isa: Isa, *alive: object) -> None:
        """Add a float32 product, divided by `grain`."""
        rows, N = args.n_rows, args.n_columns
        self.add(kernel, args, units(N, isa), grain(N, rows, isa, self._pool.n_threads), *alive)

    def seconds(self) -> float:
        start = time.perf_counter()
        self._pool.walk(self.table)
        return time.perf_counter() - start


def coded_pass(
    pool: ThreadPool, kernels: Mapping[str, int], isa: Isa, model: Model, bits: int, rows: int
) -> GemmPass:
    """Every slice at `bits` planes."""
    out = GemmPass(pool)
    for layer, m, K, N in model.matrices():
        coded = model.layers[layer]
        slices, table = _slices(coded, model, decode_table(coded.resident.codebooks[bits], bits, isa), bits)
        a, c, bias = activations(rows, K, N)
        args = _args(model, m, slices, a, c, bias)
        out.add_gemm(kernels["gemm"], args, isa, slices, table, a, c, bias)
        out.flops += 2 * rows * K * N
    return out


def resident_pass(
    pool: ThreadPool, kernels: Mapping[str, int], isa: Isa, model: Model, rows: int
) -> GemmPass:
    """Packed float32 weights: the best case of the same kernel."""
    out = GemmPass(pool)
    draw = np.random.default_rng(1)
    for _, _, K, N in model.matrices():
        packed = pack(draw.standard_normal((K, N)).astype(np.float32))
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["full"] = F32, packed.ctypes.data
        a, c, bias = activations(rows, K, N)
        args = GemmArgs(
            a=a.ctypes.data, lda=K, c=c.ctypes.data, ldc=N, n_rows=rows, n_columns=N,
            slices=slices.ctypes.data, segment_rows=K, n_segments=1, column_groups_per_slice=N // 16,
            bias=bias.ctypes.data,
        )  # fmt: skip
        out.add_gemm(kernels["gemm"], args, isa, packed, slices, a, c, bias)
        out.flops += 2 * rows * K * N
    return out


def int8_pass(
    pool: ThreadPool, kernels: Mapping[str, int], isa: Isa, model: Model, bits: int, rows: int
) -> GemmPass:
    """Every slice at `bits` planes, activations rounded before each GEMM; layers share them."""
    out = GemmPass(pool)
    places = {}
    for _, _, K, N in model.matrices():
        q, scales = np.zeros((rows, K), np.int16), np.zeros((rows, 2), np.float32)
        places[K, N] = (*activations(rows, K, N), q, scales)
    for layer, m, K, N in model.matrices():
        coded = model.layers[layer]
        worth = int8_step(coded.resident.codebooks[6], coded.resident.outlier_values, isa)
        made = decode_table_int8(coded.resident.codebooks[bits], bits, isa, worth)
        slices, table = _slices(coded, model, made, bits)
        a, c, bias, q, scales = places[K, N]
        gemm = _args(model, m, slices, a, c, bias)
        gemm.a = q.ctypes.data
        rounding = RoundRowsArgs(a.ctypes.data, K, rows, K, q.ctypes.data, K, scales.ctypes.data)
        out.add(kernels["round_rows"], rounding, rows, row_grain(K, isa), a, q, scales)
        step = np.array([worth], np.float32)
        sums = np.zeros(N, np.int32)  # as good as any for time
        args = GemmInt8Args(gemm, scales.ctypes.data, step.ctypes.data, sums.ctypes.data)
        size = grain_int8(N, rows, isa, pool.n_threads)
        out.add(kernels["gemm_int8"], args, units_int8(N), size, slices, table, c, bias, step, sums)
        out.flops += 2 * rows * K * N
    return out


def _slices(coded: EncodedLayer, model: Model, table: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    slices = np.zeros(model.n_slices, SLICE_DTYPE)
    resident = coded.resident
    for s, row in enumerate(slices):
        row["bits"] = bits
        for q in range(bits):
            row["planes"][q] = coded.planes[q, s].ctypes.data
        row["table"] = table.ctypes.data
        row["outlier_rows"] = resident.outlier_rows[s].ctypes.data
        row["outlier_offsets"] = resident.outlier_offsets.ctypes.data
        row["outlier_values"] = resident.outlier_values.ctypes.data
    return slices, table


def _args(
    model: Model, m: MatrixGeometry, slices: np.ndarray, a: np.ndarray, c: np.ndarray, bias: np.ndarray
) -> GemmArgs:
    (rows, K), N = a.shape, c.shape[1]
    along_columns = is_along_columns(m)
    return GemmArgs(
        a=a.ctypes.data, lda=K, c=c.ctypes.data, ldc=N, n_rows=rows, n_columns=N, slices=slices.ctypes.data,
        first_group=m.first_group, first_column_group=m.first_column_group, segment_rows=m.rows,
        n_segments=1 if along_columns else model.n_slices, column_groups_per_slice=m.column_groups,
        bias=bias.ctypes.data,
    )  # fmt: skip


def activations(rows: int, K: int, N: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An input [rows, K], a place for the product [rows, N] and a bias [N] of zeros, float32."""
    a = np.random.default_rng(2).standard_normal((rows, K)).astype(np.float32)
    return a, np.zeros((rows, N), np.float32), np.zeros(N, np.float32)
