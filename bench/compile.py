"""pliant.compile beside onnxruntime and OpenVINO: time, memory and start of transformers, fp32.

Batch 1, 128 tokens, two threads. Every runtime has a process of its own; for time they take turns, each after
a pause in which the others' threads stop spinning and after a run that is not timed.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import runtimes
from report import Report, interleaved, options
from runtimes import THREADS
from text_models import BERT, GPT_NEOX, MINILM, TextModel, export, feeds

START_S = 0.5
PAUSE_S = 0.25


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
        path = files[subject.name]
        servers = {name: Server(name, path) for name in runtimes.RUNTIMES if find_spec(name)}
        answers = {name: server.answer for name, server in servers.items()}
        error = float(np.abs(answers["pliant"] - answers["onnxruntime"]).max())
        seconds, ratio = interleaved({name: server.seconds for name, server in servers.items()}, rounds)
        for server in servers.values():
            server.close()
        row: dict[str, object] = {"model": subject.name}
        for name, taken in seconds.items():
            row |= {f"{name} ms": median(taken) * 1e3, f"{name} best ms": min(taken) * 1e3}
        for peer in ("onnxruntime", "openvino"):
            row[f"/ {peer}"] = ratio("pliant", peer) if peer in servers else "not installed"
            row[f"/ {peer}, best"] = min(seconds["pliant"]) / min(seconds[peer]) if peer in servers else "-"
        rows.append(row | {"largest difference": error})
        for peer, most in (("onnxruntime", subject.bar), ("openvino", subject.openvino_bar)):
            if most is not None and peer in servers:
                value = ratio("pliant", peer)
                best = min(seconds["pliant"]) / min(seconds[peer])
                note = f"{subject.name}; best of {rounds} against best: {best:.3f}."
                report.claim("compile.time", value, f"at most {most} of {peer}", value <= most, note)
    report.table("Time, fp32 (medians of paired ratios)", rows)


class Server:
    """A runtime in a process of its own that runs when told to."""

    def __init__(self, name: str, path: Path) -> None:
        answer = path.with_name(f"{path.stem}-{name}.npy")
        command = [sys.executable, str(runtimes.__file__), name, str(path), "--serve", str(answer)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()
        self.answer = np.load(answer)

    def seconds(self) -> float:
        """Of one run."""
        time.sleep(PAUSE_S)
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._process.args} ended with {self._process.wait()}"
        return line


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
