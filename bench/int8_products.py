"""int8 from 6-bit codes and from bytes against onnxruntime's: products alone, whole models, their errors.

For CPUs with VNNI: the peak is a loop of independent `vpdpbusd`, measured here. Whole models are BERT-base
and MiniLM with random weights, 128 tokens; onnxruntime quantizes the same file dynamically. Each runtime has
its own process, and they run interleaved. `examples`: codes are chosen for EXAMPLES other inputs, which
onnxruntime's dynamic quantization cannot use. On other CPUs errors are measured, but no times.
"""

import ctypes
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np
from onnxruntime.quantization import quantize_dynamic

from compile import perturbed
from fma_peak import CHAINS, UNROLL, peak_ir
from local_gemms import GemmPass
from local_layers import Model
from local_peers import onnxruntime_products
from paired import paired
from pliant.kernels.coded.decode import decode_table_int8
from pliant.kernels.coded.gemm_args import SLICE_DTYPE, GemmArgs
from pliant.kernels.coded.int8.gemm_int8 import (
    GemmInt8Args,
    gemm_bytes_ir,
    gemm_int8_ir,
    grain_int8,
    padded_int8,
    resident_shape,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.coded.int8.round_rows import RoundRowsArgs, round_rows_ir, round_rows_name, row_grain
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.product.integer_dots import add_quads
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import Head, ModelSpec
from pliant.store.coding.matrix import CodedMatrix, code_matrix
from report import Report, interleaved, options
from serving import Server, write_feeds
from text_models import BERT, MINILM, feeds

TOKENS, ROWS, EXAMPLES = 128, 128, 16
WHOLE, PRODUCTS, PEAK = 0.85, 0.9, 0.8
HOT = ((768, 768), (384, 384), (768, 3072))
_REST_S = 0.05
_CALIBRATED = ("6 bits, examples", "6 bits int8, examples")
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def main() -> None:
    opts = options(__doc__ or "")
    rounds = 5 if opts.quick else 21
    isa = host_isa()
    page = "int8_products" if isa.has_dot else "int8_errors"
    report = Report(page, f"{ROWS} rows or tokens, weights of 6 bits, row {isa.name}{isa.features}", opts)
    subjects = (("MiniLM-L6", MINILM), *(() if opts.quick else (("BERT-base", BERT),)))
    if not isa.has_dot:
        report.note(
            "This CPU multiplies no four bytes at once: no claim of cpu.vnni can be measured here, and "
            "weights and activations have fewer steps."
        )
        for name, model in subjects:
            _whole(report, name, model, [1], 0)
        report.finish()
        return
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    threads = sorted({1, min(2, len(os.sched_getaffinity(0)))})
    _in_cache(report, library, rounds)
    _products(report, library, threads, opts.quick, rounds)
    for name, model in subjects:
        _whole(report, name, model, threads, rounds)
    report.finish()


def _in_cache(report: Report, library: Library, rounds: int) -> None:
    """One product repeated on one thread, with rows already packed, as a fraction of the peak."""
    isa, units = library.isa, 20_000
    scratch = aligned_bytes(1 << 20)
    scratch[:] = 0
    peak = _KERNEL(library.load_function("peak", lambda: peak_ir(isa, "i32", add_quads)))
    kernel = _KERNEL(library.load_function("gemm_int8", lambda: gemm_int8_ir(isa)))
    rounder = _KERNEL(library.load_function("round_rows", lambda: round_rows_ir(isa)))
    functions = {"peak": _timed(lambda: peak(None, 0, units, scratch.ctypes.data))}
    alive: list[object] = []
    for K, N in HOT:
        product, space = _Product.of(isa, K, N), aligned_bytes(scratch_bytes_int8(K, isa))
        alive += [product, space]
        rounder(ctypes.addressof(product.rounding), 0, ROWS, space.ctypes.data)
        again = partial(kernel, ctypes.addressof(product.args), 0, units_int8(N), space.ctypes.data)
        functions[f"{ROWS} x {N} x {K}"] = _timed(again)
    for run in functions.values():
        run()
    seconds, ratio = interleaved(functions, 3 * rounds)
    work = {f"{ROWS} x {N} x {K}": 2.0 * ROWS * N * K for K, N in HOT}
    work["peak"] = 2.0 * 4 * isa.lanes * CHAINS * UNROLL * units
    shares = {name: work[name] / work["peak"] / ratio(name, "peak") for name in functions}
    report.table(
        "One product in cache from 6 bits, 1 thread (median of paired ratios)",
        [
            {"product": name, "GOP/s": work[name] / median(seconds[name]) / 1e9, "of the peak": shares[name]}
            for name in functions
        ],
    )
    first = next(x for x in shares if x != "peak")
    others = ", ".join(
        f"{name}: {share:.2f}" for name, share in shares.items() if name not in ("peak", first)
    )
    bar = f"{first} from 6 bits in cache at least {PEAK} of the measured peak"
    report.claim("cpu.vnni", shares[first], bar, shares[first] >= PEAK, others)


@dataclass(frozen=True)
class _Product:
    """A product of normal weights in six bits, and the rounding of its rows; `kept` is the memory of the
    arguments.
    """

    isa: Isa
    K: int
    N: int
    coded: CodedMatrix
    rounding: RoundRowsArgs
    args: GemmInt8Args
    kept: list[object]

    @classmethod
    def of(cls, isa: Isa, K: int, N: int) -> Self:
        draw = np.random.default_rng(0)
        coded = code_matrix(draw.standard_normal((K, N)).astype(np.float32) * np.float32(0.04), 6)
        a, c = draw.standard_normal((ROWS, K)).astype(np.float32), np.zeros((ROWS, N), np.float32)
        return cls._with(isa, coded, a, c, aligned_bytes(ROWS * K))

    def copy(self) -> Self:
        """The same product with a copy of the planes; rows and result are shared, as between layers."""
        planes = aligned_bytes(self.coded.planes.size).reshape(self.coded.planes.shape)
        planes[:] = self.coded.planes
        a, c, q = (x for x in self.kept[:3])
        return self._with(self.isa, replace(self.coded, planes=planes), a, c, q)  # type: ignore[arg-type]

    @classmethod
    def _with(cls, isa: Isa, coded: CodedMatrix, a: np.ndarray, c: np.ndarray, q: np.ndarray) -> Self:
        K, N = a.shape[1], c.shape[1]
        step = coded.largest / min(int8_form(isa).weight, 127)
        table = decode_table_int8(coded.codebook, 6, isa, step)
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["table"] = 6, table.ctypes.data
        slices["planes"][0, :6] = [plane.ctypes.data for plane in coded.planes]
        slices["outlier_rows"] = coded.outlier_rows.ctypes.data
        slices["outlier_offsets"] = coded.outlier_offsets.ctypes.data
        slices["outlier_values"] = coded.outlier_values.ctypes.data
        scales, worth = np.zeros((ROWS, 2), np.float32), np.array([step], np.float32)
        sums = np.zeros(N, np.int32)  # as good as any for time
        rounding = RoundRowsArgs(a.ctypes.data, K, ROWS, K, q.ctypes.data, K, scales.ctypes.data)
        gemm = GemmArgs(
            a=q.ctypes.data, c=c.ctypes.data, ldc=N, n_rows=ROWS, n_columns=N, slices=slices.ctypes.data,
            segment_rows=coded.segment_rows, n_segments=coded.n_segments, column_groups_per_slice=N // 16,
        )  # fmt: skip
        args = GemmInt8Args(gemm, scales.ctypes.data, worth.ctypes.data, sums.ctypes.data)
        return cls(isa, K, N, coded, rounding, args, [a, c, q, table, slices, scales, worth, sums])


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def _rested(run: Callable[[], float]) -> Callable[[], float]:
    """A run after a pause, because onnxruntime's threads spin for a while after its runs."""

    def seconds() -> float:
        time.sleep(_REST_S)
        return run()

    return seconds


def _products(report: Report, library: Library, threads: list[int], is_quick: bool, rounds: int) -> None:
    """All products of a model, each with its own weights; pliant rounds A for each product."""
    rows = []
    worst = dict.fromkeys(_PASSES, 0.0)
    shapes = [("MiniLM", 384, 3 if is_quick else 6), *([] if is_quick else [("BERT-base", 768, 12)])]
    for name, hidden, n_layers in shapes:
        model = _shapes(name, hidden, n_layers)
        for n_threads in threads:
            with (
                ThreadPool(n_threads, library, scratch_bytes_int8(4 * hidden, library.isa)) as pool,
                tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder,
            ):
                ours = {form: make(pool, library, model) for form, make in _PASSES.items()}
                theirs = onnxruntime_products(model, ROWS, Path(folder), n_threads)["onnxruntime int8"]
                functions = {form: _rested(run.seconds) for form, run in ours.items()}
                functions["onnxruntime int8"] = _rested(theirs)
                for run in functions.values():
                    run()
                seconds, ratio = interleaved(functions, rounds)
            for form, run_of in ours.items():
                found = ratio(form, "onnxruntime int8")
                worst[form] = max(worst[form], found)
                row = {"model": name, "layers": n_layers, "threads": n_threads, "weights": form}
                row |= {"GOP/s": run_of.flops / median(seconds[form]) / 1e9}
                rows.append(row | {"/ onnxruntime int8": found})
    report.table("All products of a model, rounding included (median of paired ratios)", rows)
    for form, value in worst.items():
        bar = f"products alone, {form}, at most {PRODUCTS} of onnxruntime int8's time, the worst row"
        report.claim("cpu.vnni", value, bar, value <= PRODUCTS)


def _shapes(name: str, hidden: int, n_layers: int) -> Model:
    """A model of 12 heads without weights."""
    head = Head("cls", None, None)
    spec = ModelSpec(
        "bert", 1, 12, hidden, 4 * hidden, hidden, 8, 8, 0, 0, "gelu", 1e-12, head, (12,), "F32"
    )  # fmt: skip
    nothing: tuple[None, ...] = (None,) * n_layers
    return Model(name, slice_geometry(spec), spec.n_heads, nothing)  # type: ignore[arg-type]


def _pass(pool: ThreadPool, library: Library, model: Model) -> GemmPass:
    """Rounding and product of every matrix, as in compiled models, with columns' sums stored with the
    weights.
    """
    isa, out = library.isa, GemmPass(pool)
    kernels = library.load_functions(
        {"gemm_int8": lambda: gemm_int8_ir(isa), "round_rows": lambda: round_rows_ir(isa)}
    )
    made = {(K, N): _Product.of(isa, K, N) for _, _, K, N in model.matrices()}
    for _, _, K, N in model.matrices():
        product = made[K, N].copy()
        size = grain_int8(N, ROWS, isa, pool.n_threads)
        out.add(kernels["round_rows"], product.rounding, ROWS, row_grain(K, isa), product)
        out.add(kernels["gemm_int8"], product.args, units_int8(N), size)
        out.flops += 2 * ROWS * K * N
    return out


@dataclass(frozen=True)
class _ByteProduct:
    """A product with resident byte weights; `kept` is the memory of the arguments."""

    args: GemmInt8Args
    kept: list[object]

    @classmethod
    def of(cls, isa: Isa, product: _Product) -> Self:
        """A product with the rows and the result of `product` and its own weights."""
        K, N = product.K, product.N
        shape = resident_shape(K, N, isa)
        panels = aligned_bytes(prod(shape))
        panels.view(np.int8)[:] = np.random.default_rng(0).integers(-127, 128, panels.size)
        _, c, q, _, _, scales, *_ = product.kept
        worth, sums = np.ones(N, np.float32), np.zeros(N, np.int32)  # as good as any for time
        gemm = GemmArgs(
            a=q.ctypes.data, c=c.ctypes.data, ldc=N, n_rows=ROWS, n_columns=N,
            segment_rows=padded_int8(K), n_segments=1,
        )  # fmt: skip
        gemm.own.full = panels.ctypes.data
        args = GemmInt8Args(gemm, scales.ctypes.data, worth.ctypes.data, sums.ctypes.data)
        return cls(args, [product, panels, worth, sums])


def _byte_pass(pool: ThreadPool, library: Library, model: Model) -> GemmPass:
    """As `_pass`, with byte weights."""
    isa, out = library.isa, GemmPass(pool)
    kernels = library.load_functions(
        {
            "gemm_bytes": lambda: gemm_bytes_ir(isa),
            round_rows_name(True, isa): lambda: round_rows_ir(isa, is_resident=True),
        }
    )
    made = {(K, N): _Product.of(isa, K, N) for _, _, K, N in model.matrices()}
    for _, _, K, N in model.matrices():
        product = _ByteProduct.of(isa, made[K, N])
        size = grain_int8(N, ROWS, isa, pool.n_threads)
        rounder = kernels[round_rows_name(True, isa)]
        out.add(rounder, made[K, N].rounding, ROWS, row_grain(K, isa), product)
        out.add(kernels["gemm_bytes"], product.args, units_int8(N), size)
        out.flops += 2 * ROWS * K * N
    return out


_PASSES: Mapping[str, Callable[[ThreadPool, Library, Model], GemmPass]] = {
    "6 bits": _pass,
    "8 bits": _byte_pass,
}


def _whole(report: Report, name: str, model: object, threads: list[int], rounds: int) -> None:
    """A model in both runtimes, and the error of int8 in each; without `rounds` the error alone."""
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        path = perturbed(model, Path(folder) / f"{name}.onnx")  # type: ignore[arg-type]
        quantized = path.with_suffix(".int8.onnx")
        quantize_dynamic(path, quantized)
        given = write_feeds(feeds(model), path.with_suffix(".npz"))  # type: ignore[arg-type]
        files = {"onnxruntime": path, "onnxruntime int8": quantized, "6 bits": path}
        files |= dict.fromkeys((*_CALIBRATED, "6 bits int8", "8 bits int8"), path)
        examples = [feeds(model, seed) for seed in range(1, EXAMPLES + 1)]  # type: ignore[arg-type]
        stacked = {x: np.stack([one[x] for one in examples]) for x in examples[0]}
        write_feeds(stacked, path.with_suffix(".examples.npz"))
        for n_threads in threads:
            with ExitStack() as stack:
                servers = {
                    kind: stack.enter_context(
                        Server(kind.replace("runtime int8", "runtime"), file, given, n_threads)
                    )
                    for kind, file in files.items()
                }
                if n_threads == threads[0]:
                    errors = _errors(report, name, {kind: s.answer for kind, s in servers.items()})
                if not rounds:
                    _claim_calibrated(report, name, errors, "time is not measured on this CPU")
                    return
                seconds, _ = interleaved({kind: s.seconds for kind, s in servers.items()}, rounds)
            _claim_error(report, f"{name}, {n_threads} threads", errors, seconds)
            rows = [
                {
                    "runtime": kind,
                    "median ms": median(seconds[kind]) * 1e3,
                    "/ onnxruntime int8": str(paired(seconds[kind], seconds["onnxruntime int8"])),
                }
                for kind in servers
            ]
            report.table(f"{name}, {TOKENS} tokens, {n_threads} threads", rows)
            found = paired(seconds["6 bits int8"], seconds["onnxruntime int8"])
            bar = f"int8 from 6 bits at most {WHOLE} of onnxruntime int8's time"
            note = f"{name}, {n_threads} threads, 95 % interval {found.low:.3f} to {found.high:.3f}"
            report.claim("cpu.vnni", found.value, bar, found.value <= WHOLE, note)


def _claim_calibrated(report: Report, name: str, errors: Mapping[str, float], time: str) -> None:
    value = errors[_CALIBRATED[1]] / errors["onnxruntime int8"]
    bar = f"error of int8 from 6 bits, chosen for {EXAMPLES} examples, at most onnxruntime int8's"
    without = errors["6 bits int8"] / errors["onnxruntime int8"]
    report.claim("cpu.error", value, bar, value <= 1.0, f"{name}, {time}; without examples {without:.2f}")


def _claim_error(
    report: Report, name: str, errors: Mapping[str, float], seconds: Mapping[str, list[float]]
) -> None:
    """The claim for bytes against onnxruntime's int8: error against float32, at no more time."""
    value = errors["8 bits int8"] / errors["onnxruntime int8"]
    time = paired(seconds["8 bits int8"], seconds["onnxruntime int8"])
    bar = "error of int8 from 8 bits, against fp32 weights, at most onnxruntime int8's, at no more time"
    note = f"{name}, at {time} of its time; 6 bits {errors['6 bits int8'] / errors['onnxruntime int8']:.2f}"
    report.claim("cpu.error", value, bar, value <= 1.0 and time.value <= 1.0, note)
    calibrated = paired(seconds[_CALIBRATED[1]], seconds["onnxruntime int8"])
    _claim_calibrated(report, name, errors, f"at {calibrated} of its time")


def _errors(report: Report, name: str, answers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """rms(error) / rms: against onnxruntime in float32 by kind, and the error that int8 adds to codes."""

    def error(of: str, against: str) -> float:
        wanted = answers[against].astype(np.float64)
        return float(np.sqrt(((answers[of] - wanted) ** 2).mean() / (wanted**2).mean()))

    kinds = ("onnxruntime int8", "6 bits", "6 bits int8", *_CALIBRATED, "8 bits int8")
    found = {kind: error(kind, "onnxruntime") for kind in kinds}
    theirs, ours = found["onnxruntime int8"], error("6 bits int8", "6 bits")
    rows = [
        {"of": kind, "against": "onnxruntime fp32", "error": e, "/ onnxruntime int8": e / theirs}
        for kind, e in found.items()
    ]
    added = {
        "of": "6 bits int8",
        "against": "6 bits fp32",
        "error": ours,
        "/ onnxruntime int8": ours / theirs,
    }
    report.table(f"{name}: error of the answer, rms / rms", [*rows, added])
    return found


if __name__ == "__main__":
    main()
