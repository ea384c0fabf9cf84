"""One row and a few rows times coded weights that exceed the caches, against a plain read of as many bytes.

A row is limited by memory, so the measure is bytes of planes per second, relative to a kernel that only sums
the bytes it reads, interleaved. The time of int8 includes rounding of activations; 2 to 8 rows share one
pass.
"""

import ctypes
import os
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from local_gemms import GemmPass
from pliant.kernels.coded.decode import decode_table, decode_table_int8
from pliant.kernels.coded.gemm import gemm_ir, scratch_bytes
from pliant.kernels.coded.gemm_args import SLICE_DTYPE, GemmArgs
from pliant.kernels.coded.int8.gemm_int8 import (
    GemmInt8Args,
    gemm_int8_ir,
    grain_int8,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.coded.int8.round_rows import RoundRowsArgs, round_rows_ir, row_grain
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.emit.values import vector
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.store.coding.matrix import CodedMatrix, code_matrix
from report import Report, interleaved, options

SIDE = 2048
READ_CHUNK = 1 << 16
INT8, FP32 = 0.9, 0.75
_STREAMS = 8


class ReadArgs(ctypes.Structure):
    """A unit is READ_CHUNK bytes from `data` on."""

    _fields_ = (("data", ctypes.c_void_p),)


def read_ir(isa: Isa) -> str:
    """A kernel that sums the bytes it reads."""
    module = Module(isa)
    words = vector(isa.lanes, "i32")
    step = _STREAMS * isa.lanes
    with module.kernel("read") as f:
        args, lo, hi, scratch = f.params
        (data,) = f.fields(args, ReadArgs, "data")
        start, stop = (i * (READ_CHUNK // 4) for i in (lo, hi))
        with f.loop(start, stop, step, carry=[f.const(0, words)] * _STREAMS) as turn:
            turn.carry(
                [
                    total + f.load(f.at(data, turn.index + i * f.lanes, "i32"), words)
                    for i, total in enumerate(turn.carried)
                ]
            )
        for i, total in enumerate(turn.carried):
            f.store(total, f.at(scratch, i * f.lanes, "i32"))
    return module.text()


def main() -> None:
    opts = options(__doc__ or "")
    isa = host_isa()
    cache = _last_cache_bytes()
    report = Report("one_row", f"{SIDE} x {SIDE} matrices, more bytes than four times {cache >> 20} MB", opts)
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    rounds = 5 if opts.quick else 15
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((SIDE, SIDE)).astype(np.float32) * np.float32(0.04)
    table, worst = [], {"int8": 9.0, "fp32": 9.0}
    for bits in (4, 6):
        coded = code_matrix(matrix, bits)
        planes = [_copy(coded.planes) for _ in range(-(-4 * cache // coded.planes.nbytes))]
        for n_threads in sorted({1, len(os.sched_getaffinity(0))}):
            with ThreadPool(
                n_threads, library, max(scratch_bytes(isa), scratch_bytes_int8(SIDE, isa))
            ) as pool:
                rows = (1,) if opts.quick else (1, 2, 4, 8)
                passes = {
                    f"{k} x {n}": _pass(pool, library, coded, planes, k, n) for k in worst for n in rows
                }
                functions = {"read": _read(pool, library, planes).seconds}
                functions |= {name: p.seconds for name, p in passes.items()}
                for run in functions.values():
                    run()
                seconds, ratio = interleaved(functions, rounds)
            total = sum(p.nbytes for p in planes)
            for name in functions:
                speed = total / median(seconds[name]) / 1e9
                table.append(
                    {
                        "bits": bits,
                        "threads": n_threads,
                        "what": name,
                        "GB/s": speed,
                        "of a read": ratio("read", name),
                    }
                )
            for kind in worst:
                worst[kind] = min(worst[kind], ratio("read", f"{kind} x 1"))
    report.table("Bytes of planes a second (median of paired ratios)", table)
    for kind, bar in (("int8", INT8), ("fp32", FP32)):
        words = f"one row in {kind}, 4 and 6 bits, at least {bar} of a plain read, the worst row"
        report.claim("cpu.row", worst[kind], words, worst[kind] >= bar)
    report.finish()


def _last_cache_bytes() -> int:
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(s.read_text().strip().rstrip("K")) << 10 for s in sizes), default=32 << 20)


def _copy(planes: np.ndarray) -> np.ndarray:
    out = aligned_bytes(planes.size).reshape(planes.shape)
    out[:] = planes
    return out


def _read(pool: ThreadPool, library: Library, planes: list[np.ndarray]) -> GemmPass:
    out, kernel = GemmPass(pool), library.load_function("read", lambda: read_ir(library.isa))
    for p in planes:
        out.add(kernel, ReadArgs(p.ctypes.data), p.nbytes // READ_CHUNK, 4, p)
    return out


def _pass(
    pool: ThreadPool, library: Library, coded: CodedMatrix, planes: list[np.ndarray], kind: str, rows: int
) -> GemmPass:
    """All copies of the matrix times the same rows."""
    isa, out = library.isa, GemmPass(pool)
    bits = len(coded.planes)
    a = np.random.default_rng(1).standard_normal((rows, SIDE)).astype(np.float32)
    c, q = np.zeros((rows, SIDE), np.float32), aligned_bytes(rows * SIDE)
    scales, sums = np.zeros((rows, 2), np.float32), np.zeros(SIDE, np.int32)
    worth = np.array([coded.largest / min(int8_form(isa).weight, 127)], np.float32)
    is_int8 = kind == "int8"
    made = (
        decode_table_int8(coded.codebook, bits, isa, float(worth[0]))
        if is_int8
        else decode_table(coded.codebook, bits, isa)
    )
    kernel = (
        library.load_function("gemm_int8", lambda: gemm_int8_ir(isa))
        if is_int8
        else library.load_function("gemm", lambda: gemm_ir(isa))
    )
    rounder = library.load_function("round_rows", lambda: round_rows_ir(isa))
    for p in planes:
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["table"] = bits, made.ctypes.data
        slices["planes"][0, :bits] = [plane.ctypes.data for plane in p]
        slices["outlier_rows"] = coded.outlier_rows.ctypes.data
        slices["outlier_offsets"] = coded.outlier_offsets.ctypes.data
        slices["outlier_values"] = coded.outlier_values.ctypes.data
        gemm = GemmArgs(
            a=q.ctypes.data if is_int8 else a.ctypes.data, lda=SIDE, c=c.ctypes.data, ldc=SIDE, n_rows=rows,
            n_columns=SIDE, slices=slices.ctypes.data, segment_rows=coded.segment_rows,
            n_segments=coded.n_segments, column_groups_per_slice=SIDE // 16,
        )  # fmt: skip
        if not is_int8:
            out.add_gemm(kernel, gemm, isa, slices, made, coded, a, c)
            continue
        rounding = RoundRowsArgs(a.ctypes.data, SIDE, rows, SIDE, q.ctypes.data, SIDE, scales.ctypes.data)
        out.add(rounder, rounding, rows, row_grain(SIDE, isa), a, q, scales)
        args = GemmInt8Args(gemm, scales.ctypes.data, worth.ctypes.data, sums.ctypes.data)
        size = grain_int8(SIDE, rows, isa, pool.n_threads)
        out.add(kernel, args, units_int8(SIDE), size, slices, made, coded, worth, sums, c)
    return out


if __name__ == "__main__":
    main()
