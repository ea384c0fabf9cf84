"""AMX: products against the peak of its tiles, and whole models against onnxruntime and OpenVINO.

Runs only if the processor has AMX, the system grants it and PLIANT_AMX is 1; otherwise it prints the
reason and makes no claim. Models are MiniLM and BERT-base with random weights, 128 tokens, and ResNet-50;
each runtime has its own process, and they run interleaved. OpenVINO runs in bfloat16, its default on such a
processor, and in int8 after NNCF's post-training quantization (`pip install nncf`).
"""

import ctypes
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from onnxruntime.quantization import quantize_dynamic

from compile import perturbed
from paired import paired
from pliant.kernels.coded.block_bf16 import decode_table_bf16
from pliant.kernels.coded.decode import decode_table, decode_table_int8
from pliant.kernels.coded.gemm import gemm_ir, scratch_bytes, units
from pliant.kernels.coded.gemm_args import SLICE_DTYPE, GemmArgs
from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir, scratch_bytes_bf16, units_bf16
from pliant.kernels.coded.int8.gemm_int8 import GemmInt8Args, gemm_int8_ir, scratch_bytes_int8, units_int8
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import AVX512_AMX, Isa, host_flags, is_runnable, needed_flags
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.tiles.gemm_split import gemm_split_ir, scratch_bytes_split, units_split
from pliant.kernels.tiles.tile_ops import TileKind, tile_ops, write_configure
from pliant.kernels.tiles.tile_rows import config_space
from pliant.settings import allows_amx
from pliant.store.coding.matrix import CodedMatrix, code_matrix
from report import Report, interleaved, options
from serving import Server, write_feeds
from text_models import BERT, MINILM, TextModel, feeds
from vision_models import export

ROWS = 128
SHAPES = ((768, 768), (768, 3072), (3072, 768), (384, 1536))
_TURNS = 20_000
_DEPTHS = {"int8": 64, "bf16": 32}
_CALIBRATION = 64
"""Inputs from which NNCF takes the ranges of activations."""
_OPENVINO, _NNCF = "openvino bf16", "openvino int8 (NNCF)"
_BARS = (
    ("6 bits bf16", _OPENVINO, 0.8),
    ("pliant", "onnxruntime", 0.40),
    ("6 bits int8", "onnxruntime int8", 0.8),
    ("6 bits int8", _NNCF, 1.0),
)
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
Run = Callable[[], object]


def main() -> None:
    opts = options(__doc__ or "")
    isa = AVX512_AMX
    report = Report("amx", f"{ROWS} rows or tokens, weights of 6 bits", opts)
    if not is_runnable(isa):
        lacking = sorted(needed_flags(isa) - host_flags())
        why = f"this processor lacks {', '.join(lacking)}" if lacking else "the system does not lend it"
        raise SystemExit(f"AMX cannot be measured here: {why}. Run this on Sapphire Rapids or later.")
    if not allows_amx():
        raise SystemExit("sessions use AMX only if PLIANT_AMX is 1: set it and run this again.")
    rounds = 5 if opts.quick else 21
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    _in_cache(report, library, rounds)
    threads = min(2, len(os.sched_getaffinity(0)))
    if find_spec("nncf") is None:
        report.note("OpenVINO's int8 was not measured: NNCF is not installed (`pip install nncf`).")
    for name, model in (("MiniLM-L6", MINILM), *(() if opts.quick else (("BERT-base", BERT),))):
        _text_model(report, name, model, threads, rounds)
    _convolutions(report, threads, rounds)
    report.finish()


def peak_ir(isa: Isa, kind: TileKind) -> str:
    """A kernel whose unit is four products of full tiles with as many sums."""
    module = Module(isa)
    write_configure(module)
    with module.kernel("peak") as f:
        _, lo, hi, scratch = f.params
        config, sixteen, stride = config_space(f), f.const(16), f.const(64)
        f.call("configure", "void", config, sixteen, sixteen, sixteen)
        ops = tile_ops(f, config)
        for tile in range(8):
            ops.load(tile, scratch, stride)
        with f.each(lo, hi):
            for c in range(4):
                ops.multiply(kind, c, 4 + c // 2, 6 + c % 2)
        ops.release()
    return module.text()


def _in_cache(report: Report, library: Library, rounds: int) -> None:
    """One product repeated on one thread, with rows already rounded, against float32 FMA."""
    rows = []
    space = aligned_bytes(1 << 22)
    space[:] = 0
    for K, N in SHAPES:
        coded = code_matrix(np.random.default_rng(0).standard_normal((K, N)).astype(np.float32), 6)
        functions, kept = _kernels(library, coded, K, N, space)
        for kind in ("int8", "bf16"):
            peak = _KERNEL(library.load_function("peak", partial(peak_ir, library.isa, kind)))
            functions[f"peak {kind}"] = _timed(partial(peak, None, 0, _TURNS, space.ctypes.data))
        for run in functions.values():
            run()
        seconds, ratio = interleaved(functions, 3 * rounds)
        work = {f"peak {kind}": 8.0 * 16 * 16 * depth * _TURNS for kind, depth in _DEPTHS.items()}
        for name in ("fp32", "split", "bf16", "int8"):
            peak_name = "peak int8" if name == "int8" else "peak bf16"
            flops = 2.0 * ROWS * N * K
            share = flops / work[peak_name] / ratio(name, peak_name)
            row = {"N x K": f"{N} x {K}", "product": name, "GOP/s": flops / median(seconds[name]) / 1e9}
            rows.append(row | {"of the tiles' peak": share, "/ fp32": ratio(name, "fp32")})
        del kept
    report.table(f"One product of {ROWS} rows in cache from 6 bits, 1 thread (median of paired ratios)", rows)


def _kernels(
    library: Library, coded: CodedMatrix, K: int, N: int, space: np.ndarray
) -> tuple[dict[str, Callable[[], float]], list[object]]:
    """The product in every form, and the memory of its arguments; the values of A do not affect the time."""
    isa, step = library.isa, np.float32(coded.largest / 127)
    a, c = aligned_bytes(8 * ROWS * K), np.zeros((ROWS, N), np.float32)
    a[:] = 0
    scales, sums = np.ones((ROWS, 2), np.float32), np.zeros(N, np.int32)
    worth = np.array([step], np.float32)
    tables = {
        "fp32": decode_table(coded.codebook, 6, isa),
        "bf16": decode_table_bf16(coded.codebook, 6, isa),
        "int8": decode_table_int8(coded.codebook, 6, isa, float(step)),
    }
    tables["split"] = tables["bf16"]
    strides = {"fp32": K, "split": K, "bf16": K // 2, "int8": 0}
    forms = {
        "fp32": (gemm_ir, units(N, isa), scratch_bytes(isa)),
        "split": (gemm_split_ir, units_split(N), scratch_bytes_split()),
        "bf16": (gemm_bf16_ir, units_bf16(N, isa), scratch_bytes_bf16(K, isa)),
        "int8": (gemm_int8_ir, units_int8(N), scratch_bytes_int8(K, isa)),
    }
    kept: list[object] = [coded, a, c, scales, sums, worth, tables]
    functions = {}
    for name, (generate, n_units, scratch) in forms.items():
        assert scratch <= space.nbytes
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["table"] = 6, tables[name].ctypes.data
        slices["planes"][0, :6] = [plane.ctypes.data for plane in coded.planes]
        slices["outlier_rows"] = coded.outlier_rows.ctypes.data
        slices["outlier_offsets"] = coded.outlier_offsets.ctypes.data
        slices["outlier_values"] = coded.outlier_values.ctypes.data
        args: ctypes.Structure = GemmArgs(
            a=a.ctypes.data, lda=strides[name], c=c.ctypes.data, ldc=N, n_rows=ROWS, n_columns=N,
            slices=slices.ctypes.data, segment_rows=coded.segment_rows, n_segments=coded.n_segments,
            column_groups_per_slice=N // 16,
        )  # fmt: skip
        if name == "int8":
            args = GemmInt8Args(args, scales.ctypes.data, worth.ctypes.data, sums.ctypes.data)
        symbol = generate.__name__.removesuffix("_ir")
        kernel = _KERNEL(library.load_function(symbol, partial(generate, isa)))
        functions[name] = _timed(partial(kernel, ctypes.addressof(args), 0, n_units, space.ctypes.data))
        kept += [slices, args]
    return functions, kept


def _timed(run: Run) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def _text_model(report: Report, name: str, model: TextModel, threads: int, rounds: int) -> None:
    """A model in every runtime, and the bars."""
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        path = perturbed(model, Path(folder) / f"{name}.onnx")
        quantized = path.with_suffix(".int8.onnx")
        quantize_dynamic(path, quantized)
        kinds = ("onnxruntime", _OPENVINO, "pliant", "6 bits", "6 bits bf16", "6 bits int8")
        subjects = {kind: (kind, path) for kind in kinds}
        subjects["onnxruntime int8"] = ("onnxruntime", quantized)
        if find_spec("nncf"):
            subjects[_NNCF] = (_OPENVINO, quantized_by_nncf(model, path))
        given = write_feeds(feeds(model), path.with_suffix(".npz"))
        seconds = _runtimes(report, f"{name}, 128 tokens", subjects, given, threads, rounds)
    for ours, peer, most in _BARS:
        if peer not in seconds:
            continue
        found = paired(seconds[ours], seconds[peer])
        note = f"{name}, {threads} threads, 95 % interval {found.low:.3f} to {found.high:.3f}"
        bar = f"{ours} at most {most} of {peer}'s time"
        report.claim("cpu.amx", found.value, bar, found.value <= most, note)


def quantized_by_nncf(model: TextModel, path: Path) -> Path:
    """OpenVINO's form of the model in int8, by NNCF's post-training quantization for transformers."""
    import nncf
    import openvino

    random = np.random.default_rng(1)
    examples = [
        feeds(model) | {"ids": random.integers(1000, model.vocabulary, (1, model.tokens), dtype=np.int64)}
        for _ in range(_CALIBRATION)
    ]
    quantized = nncf.quantize(
        openvino.Core().read_model(path),
        nncf.Dataset(examples),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=_CALIBRATION,
    )
    out = path.with_suffix(".nncf.xml")
    openvino.save_model(quantized, out)
    return out


def _convolutions(report: Report, threads: int, rounds: int) -> None:
    """ResNet-50 in every runtime; the issue sets no bar for it."""
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        path = export("resnet50", Path(folder) / "resnet50.onnx")
        x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
        given = write_feeds({"x": x}, path.with_suffix(".npz"))
        subjects = {kind: (kind, path) for kind in ("onnxruntime", _OPENVINO, "pliant", "bf16")}
        _runtimes(report, "ResNet-50, batch 1", subjects, given, threads, rounds)


def _runtimes(
    report: Report, name: str, subjects: dict[str, tuple[str, Path]], given: Path, threads: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each runtime's runs, interleaved; `subjects` maps a label to a runtime and its file."""
    with ExitStack() as stack:
        servers = {
            label: stack.enter_context(Server(runtime, file, given, threads))
            for label, (runtime, file) in subjects.items()
        }
        seconds, _ = interleaved({label: server.seconds for label, server in servers.items()}, rounds)
        expected = servers["onnxruntime"].answer
        errors = {label: _error(server.answer, expected) for label, server in servers.items()}
    peers = [label for label in subjects if label.startswith(("onnxruntime", "openvino"))]
    rows = [
        {
            "runtime": label,
            "median ms": median(taken) * 1e3,
            **{f"/ {peer}": str(paired(taken, seconds[peer])) for peer in peers},
            "error": errors[label],
        }
        for label, taken in seconds.items()
    ]
    report.table(f"{name}, {threads} threads; rms error divided by onnxruntime's rms answer", rows)
    return seconds


def _error(answer: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(answer - expected).mean() / np.square(expected).mean()))


if __name__ == "__main__":
    main()
