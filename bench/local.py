"""The local engine's kernels against its own resident weights and against onnxruntime, interleaved.

A model's GEMMs run one after another over all its layers, as in a forward pass, so that weights come from the
same cache level or memory as in a whole model. Claims are judged on one thread, where other load disturbs
least; results on all cores are also shown.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from local_gemms import coded_pass, int8_pass, resident_pass
from local_layers import Model, bert, minilm
from local_peers import onnxruntime_products, torch_products
from pliant.kernels.coded.gemm import gemm_ir, scratch_bytes
from pliant.kernels.coded.int8.gemm_int8 import gemm_int8_ir, scratch_bytes_int8
from pliant.kernels.coded.int8.round_rows import round_rows_ir
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from report import Report, interleaved, options
from whole_model import overhead, whole_model

ALL_BITS = (2, 3, 4, 5, 6)


def main() -> None:
    chosen = options(__doc__.splitlines()[0] if __doc__ else "")
    rounds = 3 if chosen.quick else 25
    models = [minilm(3)] if chosen.quick else [minilm(6), bert(12)]
    workload = f"GEMMs of {', '.join(m.name for m in models)}; {rounds} interleaved rounds"
    report = Report("local", workload, chosen)
    isa = host_isa()
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    kernels = library.load_functions(
        {
            "gemm": lambda: gemm_ir(isa),
            "gemm_int8": lambda: gemm_int8_ir(isa),
            "round_rows": lambda: round_rows_ir(isa),
        }
    )
    scratch = max(scratch_bytes(isa), scratch_bytes_int8(4096, isa))
    decode, int8 = [], []
    threads = tuple(sorted({1, len(os.sched_getaffinity(0))}))
    for n_threads in threads[:1] if chosen.quick else threads:
        with ThreadPool(n_threads, library, scratch) as pool:
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
class WorstRatios:
    """The largest ratio over models and k, at 128 rows and at one."""

    many: float
    one: float

    def __str__(self) -> str:
        return f"{self.many:.3f} at 128 rows, {self.one:.3f} at 1 row"


def _decode(
    report: Report,
    pool: ThreadPool,
    kernels: Mapping[str, int],
    isa: Isa,
    models: list[Model],
    rounds: int,
) -> WorstRatios:
    """The decoding GEMM against the resident one, and torch's float32."""
    rows = []
    worst = {1: 0.0, 16: 0.0, 128: 0.0}
    for model in models:
        for n in worst:
            passes = {str(k): coded_pass(pool, kernels, isa, model, k, n) for k in ALL_BITS}
            passes["fp32"] = resident_pass(pool, kernels, isa, model, n)
            functions = {name: p.seconds for name, p in passes.items()}
            functions["torch"] = torch_products(model, n, pool.n_threads)
            for run in functions.values():
                run()
            seconds, ratio = interleaved(functions, rounds)
            by_bits = {f"k={k}": ratio(str(k), "fp32") for k in ALL_BITS}
            worst[n] = max(worst[n], *by_bits.values())
            row: dict[str, object] = {"model": model.name, "threads": pool.n_threads, "rows": n}
            row["fp32 ms"] = median(seconds["fp32"]) * 1e3
            row["fp32 GFLOP/s"] = passes["fp32"].flops / median(seconds["fp32"]) / 1e9
            row["fp32 / torch"] = ratio("fp32", "torch")
            rows.append(row | by_bits)
    title = "fp32 GEMM that decodes / resident fp32 GEMM, outliers included (median of paired ratios)"
    report.table(title, rows)
    return WorstRatios(worst[128], worst[1])


def _int8(
    report: Report, pool: ThreadPool, kernels: Mapping[str, int], isa: Isa, model: Model, rounds: int
) -> float:
    """The int8 GEMM against the fp32 ones and onnxruntime's dynamic int8 on the same products."""
    rows = 128
    passes = {f"int8 k={k}": int8_pass(pool, kernels, isa, model, k, rows) for k in (2, 4, 6)}
    passes["fp32"] = resident_pass(pool, kernels, isa, model, rows)
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        functions = {name: p.seconds for name, p in passes.items()}
        functions |= onnxruntime_products(model, rows, Path(folder), pool.n_threads)
        for run in functions.values():
            run()
        seconds, ratio = interleaved(functions, rounds)
    table: list[dict[str, object]] = [
        {
            "GEMM": name,
            "GOP/s": passes["fp32"].flops / median(seconds[name]) / 1e9,
            "/ fp32": ratio(name, "fp32"),
            "/ onnxruntime fp32": ratio(name, "onnxruntime fp32"),
            "/ onnxruntime int8": ratio(name, "onnxruntime int8"),
        }
        for name in functions
    ]
    title = f"int8 at {rows} rows, {model.name}, {pool.n_threads} threads (median of paired ratios)"
    report.table(title, table)
    return max(ratio(f"int8 k={k}", "onnxruntime int8") for k in (2, 4, 6))


if __name__ == "__main__":
    main()
