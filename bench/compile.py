"""pliant.compile beside onnxruntime and OpenVINO: time, memory and start of transformers, fp32.

Batch 1, 128 tokens, two threads. Each runtime has its own process; timed runs are interleaved, each after a
pause in which the others' threads stop spinning, and after an untimed run.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from paired import paired
from report import Report, interleaved, options
from runtimes import THREADS
from serving import Server, compiled_directory, fresh, write_bytecode, write_feeds
from text_models import BERT, GPT_NEOX, MINILM, TextModel, export, feeds

START_S = 0.5
_CPU_FP32 = ("BERT-base", "MiniLM-L6")
COMPARED = tuple(x for x in ("pliant", "onnxruntime", "openvino") if find_spec(x))


@dataclass(frozen=True, slots=True)
class Files:
    """An exported model, and the feeds that every runtime reads."""

    model: Path
    feeds: Path


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and the bars its time as a ratio to onnxruntime's and to OpenVINO's must meet."""

    name: str
    model: TextModel
    bars: Mapping[str, float]
    stretch: str = ""


SUBJECTS = (
    Subject("BERT-base", BERT, {"onnxruntime": 0.80, "openvino": 1.05}, "stretch: 0.75 of onnxruntime"),
    Subject("MiniLM-L6", MINILM, {"onnxruntime": 0.70}),
    Subject("GPT-NeoX, 6 layers of 512", GPT_NEOX, {"onnxruntime": 0.80}),
)


def main() -> None:
    opts = options(__doc__ or "")
    workload = f"batch 1, 128 tokens, {THREADS} threads, fp32"
    report = Report("compile", workload, opts)
    with TemporaryDirectory() as name:
        folder = Path(name)
        subjects = SUBJECTS[1:2] if opts.quick else SUBJECTS
        files = {s.name: _files(s.model, folder / f"{i}.onnx") for i, s in enumerate(subjects)}
        _times(report, subjects, files, 5 if opts.quick else 21)
        if not opts.quick:
            write_bytecode()
            _memory(report, files["BERT-base"], _saved(files["BERT-base"]))
            _start(report, files["MiniLM-L6"], _saved(files["MiniLM-L6"]))
    report.finish()


def _files(model: TextModel, path: Path) -> Files:
    return Files(perturbed(model, path), write_feeds(feeds(model), path.with_suffix(".npz")))


def perturbed(model: TextModel, path: Path) -> Path:
    """The exported model, with biases and scales other than 0 and 1, so that runtimes cannot omit them."""
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


def _times(report: Report, subjects: tuple[Subject, ...], files: Mapping[str, Files], rounds: int) -> None:
    rows = []
    for subject in subjects:
        own = files[subject.name]
        with ExitStack() as stack:
            servers = {x: stack.enter_context(Server(x, own.model, own.feeds)) for x in COMPARED}
            error = float(np.abs(servers["pliant"].answer - servers["onnxruntime"].answer).max())
            seconds, _ = interleaved({name: server.seconds for name, server in servers.items()}, rounds)
        row: dict[str, object] = {"model": subject.name}
        for name, taken in seconds.items():
            row[f"{name} ms"] = median(taken) * 1e3
        for peer in ("onnxruntime", "openvino"):
            has = peer in seconds
            ratio = paired(seconds["pliant"], seconds[peer]) if has else None
            row[f"/ {peer}"] = "not installed" if ratio is None else str(ratio)
            most = subject.bars.get(peer)
            if ratio is not None and most is not None:
                note = f"{subject.name}; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
                note += f"; {subject.stretch}" if subject.stretch and peer == "onnxruntime" else ""
                id = "cpu.fp32" if peer == "onnxruntime" and subject.name in _CPU_FP32 else "compile.time"
                report.claim(id, ratio.value, f"at most {most:.2f} of {peer}", ratio.value <= most, note)
        rows.append(row | {"largest difference": error})
    report.table("Time, fp32 (medians of paired ratios, 95 % intervals)", rows)


def _memory(report: Report, own: Files, saved: Path) -> None:
    starts = {name: fresh(name, own.model, own.feeds) for name in COMPARED}
    starts["pliant, compiled before"] = fresh("loaded", saved, own.feeds)
    rows = [
        {"runtime": name, "first answer s": start.process_s, "peak MB": start.peak_mb}
        for name, start in starts.items()
    ]
    report.table("BERT-base in a fresh process: import, open, first answer", rows)
    value = starts["pliant, compiled before"].peak_mb / starts["onnxruntime"].peak_mb
    whole = starts["pliant"].peak_mb / starts["onnxruntime"].peak_mb
    note = f"from a compiled directory; a process that compiles the ONNX file first: {whole:.3f}"
    report.claim("compile.memory", value, "peak RSS at most 0.58 of onnxruntime's, fp32", value <= 0.58, note)


def _saved(own: Files) -> Path:
    """The directory that `pliant compile` writes."""
    return compiled_directory(own.model, own.model.with_suffix(".pliant"))


def _start(report: Report, own: Files, saved: Path) -> None:
    starts = [fresh("loaded", saved, own.feeds) for _ in range(5)]
    rows = [
        {"first answer s": s.process_s, "in Python s": s.start_s, "run s": s.first_s, "peak MB": s.peak_mb}
        for s in starts
    ]
    report.table("A compiled MiniLM-L6 in fresh processes: start, import, load, first answer", rows)
    value = median(start.process_s for start in starts)
    report.claim(
        "compile.start",
        value,
        f"under {START_S} s with a warm cache",
        value < START_S,
        f"median of {len(starts)} processes, from their start to the answer",
    )


if __name__ == "__main__":
    main()
