"""pliant.compile beside onnxruntime, OpenVINO and torch: time, memory and start of transformers, fp32.

Batch 1, 128 tokens, two threads. Times come from one process, interleaved, each runtime warmed before it
is timed, because the others' threads spin on for a while; memory and start come from fresh processes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import runtimes
from report import Report, interleaved, options
from runtimes import THREADS
from text_models import BERT, GPT_NEOX, MINILM, TextModel, build, export, feeds

START_S = 0.5


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and the bars its time as a ratio to onnxruntime's and to OpenVINO's must meet."""

    name: str
    model: TextModel
    bar: float
    openvino_bar: float | None = None


SUBJECTS = (
    Subject("BERT-base", BERT, 0.80, 1.05),
    Subject("MiniLM-L6", MINILM, 0.70),
    Subject("GPT-NeoX, 6 layers of 512", GPT_NEOX, 0.80),
)


def main() -> None:
    opts = options(__doc__ or "")
    workload = f"batch 1, 128 tokens, {THREADS} threads, fp32"
    report = Report("compile", workload, opts)
    with TemporaryDirectory() as folder:
        files = {s.name: _perturbed(s.model, Path(folder) / f"{i}.onnx") for i, s in enumerate(SUBJECTS)}
        _times(report, files, 5 if opts.quick else 21)
        if not opts.quick:
            _memory(report, files["BERT-base"], BERT)
            _start(report, files["MiniLM-L6"], MINILM, Path(folder))
    report.finish()


def _perturbed(model: TextModel, path: Path) -> Path:
    """The exported model, with biases and scales that are not 0 and 1, which could be left out."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(export(model, path))
    random = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if len(tensor.dims) == 1 and tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            noise = random.standard_normal(values.shape).astype(np.float32) * np.float32(0.05)
            tensor.CopyFrom(numpy_helper.from_array(values + noise, tensor.name))
    onnx.save(proto, path)
    return path


def _times(report: Report, files: dict[str, Path], rounds: int) -> None:
    rows = []
    for subject in SUBJECTS:
        path, given = files[subject.name], feeds(subject.model)
        runs = {name: make(path, given) for name, make in runtimes.RUNTIMES.items() if find_spec(name)}
        runs["torch"] = _torch(subject.model, given)
        expected = runs["onnxruntime"]()
        error = float(np.abs(runs["pliant"]() - expected).max())
        seconds, ratio = interleaved({name: _timed(run) for name, run in runs.items()}, rounds)
        row: dict[str, object] = {"model": subject.name, "pliant ms": median(seconds["pliant"]) * 1e3}
        row["onnxruntime ms"] = median(seconds["onnxruntime"]) * 1e3
        for peer in ("onnxruntime", "openvino", "torch"):
            row[f"/ {peer}"] = ratio("pliant", peer) if peer in runs else "not installed"
            row[f"/ {peer}, best"] = min(seconds["pliant"]) / min(seconds[peer]) if peer in runs else "-"
        report_row = row | {"largest difference": error}
        rows.append(report_row)
        value = ratio("pliant", "onnxruntime")
        best = min(seconds["pliant"]) / min(seconds["onnxruntime"])
        note = f"{subject.name}; best of {rounds} against best: {best:.3f}."
        report.claim(
            "compile.time", value, f"at most {subject.bar} of onnxruntime", value <= subject.bar, note
        )
        if subject.openvino_bar is not None and "openvino" in runs:
            value = ratio("pliant", "openvino")
            bar = f"at most {subject.openvino_bar} of OpenVINO"
            report.claim("compile.time", value, bar, value <= subject.openvino_bar, subject.name)
    report.table("Time, fp32 (medians of paired ratios)", rows)


def _timed(run: Callable[[], np.ndarray]) -> Callable[[], float]:
    def seconds() -> float:
        run()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def _torch(model: TextModel, given: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    """The module itself, with its own weights: only its time is compared."""
    import torch

    torch.set_num_threads(THREADS)
    module = build(model)
    ids, mask = (torch.from_numpy(x) for x in given.values())

    def run() -> np.ndarray:
        with torch.no_grad():
            return np.asarray(module(input_ids=ids, attention_mask=mask)[0])

    return run


def _memory(report: Report, path: Path, model: TextModel) -> None:
    rows = [{"runtime": name} | _fresh(name, path) for name in runtimes.RUNTIMES if find_spec(name)]
    report.table("BERT-base in a fresh process: import, open, three runs", rows)
    peaks = {str(row["runtime"]): float(str(row["peak MB"])) for row in rows}
    value = peaks["pliant"] / peaks["onnxruntime"]
    report.claim("compile.memory", value, "peak RSS at most 0.58 of onnxruntime's, fp32", value <= 0.58)


def _start(report: Report, path: Path, model: TextModel, folder: Path) -> None:
    import pliant
    from pliant.compile.saved import save

    session = pliant.compile(path, threads=THREADS)
    save(session.image(feeds(model)), folder / "minilm")
    rows = [_fresh("loaded", folder / "minilm") for _ in range(5)]
    report.table("A compiled MiniLM-L6 in fresh processes", rows)
    value = min(float(str(row["first answer s"])) for row in rows)
    report.claim("compile.start", value, f"under {START_S} s with a warm cache", value < START_S)


def _fresh(name: str, path: Path) -> dict[str, object]:
    command = [sys.executable, runtimes.__file__, name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
