"""Weights in six bits, decoded on the fly, and in bytes: memory and time against onnxruntime.

BERT-base and MiniLM of bench/compile.py (random weights, nonzero biases), and the MiniLM that ships with
pliant, with trained weights. int8 is compared with onnxruntime's dynamic quantization of the same file: its
time, its memory, and the error of the answer against onnxruntime's in float32. Each runtime has its own
process with two threads, and they run interleaved.
"""

import logging
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from compile import perturbed
from paired import paired
from report import ROOT, Report, interleaved, options
from runtimes import THREADS
from serving import Server, Start, fresh, write_feeds
from text_models import BERT, MINILM, feeds

TOKENS = 128
FP32_MEMORY, INT8_MEMORY, INT8_TIME = 0.25, 0.65, 0.85


@dataclass(frozen=True, slots=True)
class Subject:
    """A model's files: as exported, quantized by onnxruntime, compiled to six bits by us, and its feeds."""

    name: str
    fp32: Path
    int8: Path
    feeds: Path
    compiled: Mapping[str, Path]


def main() -> None:
    opts = options(__doc__ or "")
    report = Report(
        "compile_int8", f"batch 1, {TOKENS} tokens, {THREADS} threads, weights of 6 and 8 bits", opts
    )
    report.note(
        "`6 bits` computes in float32, `6 bits int8` and `8 bits int8` in int8; `loaded` runs the output of "
        "`pliant compile -o`. "
        "No code of 6 bits per weight has a squared error of normal weights below 2^-12 = 2.4e-4 of their "
        "variance (the Gaussian's rate-distortion bound); 256 equal steps over weights without outliers "
        "have about 1.2e-4. So on random weights onnxruntime's error is smaller in theory. Trained "
        "weights have a few outliers, which widen equal steps and which our codes store exactly."
    )
    with TemporaryDirectory() as name:
        folder = Path(name)
        subjects = [trained_model(folder)]
        if not opts.quick:
            subjects = [
                random_model(folder, "BERT-base", BERT),
                random_model(folder, "MiniLM-L6", MINILM),
                *subjects,
            ]
        for subject in subjects:
            _time(report, subject, 5 if opts.quick else 11)
        if not opts.quick:
            for subject in subjects[:2]:
                _memory(report, subject)
    report.finish()


def random_model(folder: Path, name: str, model: object) -> Subject:
    path = perturbed(model, folder / f"{name}.onnx")  # type: ignore[arg-type]
    return _subject(name, path, feeds(model))  # type: ignore[arg-type]


def trained_model(folder: Path) -> Subject:
    """The shipped model's encoder, in float32, reading English."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    from pliant.api.resolve import resolve
    from pliant.elastic.export import load_weights, write_weights
    from pliant.models.hf.checkpoint import open_checkpoint

    source = resolve("sst2").path
    checkpoint = open_checkpoint(source)
    directory = write_weights(folder / "sst2", checkpoint.spec, load_weights(checkpoint), source)

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(input_ids=ids).last_hidden_state
            return found

    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    ids = np.array([Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids[:TOKENS]])
    path = folder / "trained.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Last(), (torch.from_numpy(ids),), str(path), input_names=["ids"], opset_version=17, dynamo=False
        )
    return _subject("MiniLM-L6, trained", path, {"ids": ids})


def _subject(name: str, path: Path, given: dict[str, np.ndarray]) -> Subject:
    from onnxruntime.quantization import quantize_dynamic

    import pliant
    from pliant.compiler.aot.compiled_directory import save

    logging.getLogger().setLevel(logging.ERROR)
    quantized = path.with_suffix(".int8.onnx")
    quantize_dynamic(path, quantized)
    compiled = {}
    forms = (("6 bits", 6, "fp32"), ("6 bits int8", 6, "int8"), ("8 bits int8", 8, "int8"))
    for kind, bits, compute in forms:
        compiled[kind] = path.with_suffix(f".{bits}.{compute}.compiled")
        session = pliant.compile(path, weights=bits, compute=compute)  # type: ignore[arg-type]
        save(session.image(given), compiled[kind])
    return Subject(name, path, quantized, write_feeds(given, path.with_suffix(".npz")), compiled)


def _time(report: Report, subject: Subject, rounds: int) -> None:
    with ExitStack() as stack:

        def serve(name: str, file: Path) -> Server:
            return stack.enter_context(Server(name, file, subject.feeds))

        servers = {
            "onnxruntime": serve("onnxruntime", subject.fp32),
            "pliant": serve("pliant", subject.fp32),
            "6 bits": serve("6 bits", subject.fp32),
            "6 bits int8": serve("6 bits int8", subject.fp32),
            "8 bits int8": serve("8 bits int8", subject.fp32),
        }
        wanted = servers["onnxruntime"].answer
        # It writes its answer to the same file, after the float32 answer has been read.
        servers["onnxruntime int8"] = serve("onnxruntime", subject.int8)
        seconds, _ = interleaved({name: server.seconds for name, server in servers.items()}, rounds)
        errors = {x: answer_error(server.answer, wanted) for x, server in servers.items()}
    int8 = paired(seconds["6 bits int8"], seconds["onnxruntime int8"])
    fp32 = paired(seconds["6 bits"], seconds["pliant"])
    rows = [
        {
            "runtime": name,
            "median ms": median(taken) * 1e3,
            "/ onnxruntime int8": str(paired(taken, seconds["onnxruntime int8"])),
            "/ pliant fp32": str(paired(taken, seconds["pliant"])),
            "error, rms / rms": errors[name],
        }
        for name, taken in seconds.items()
    ]
    report.table(f"{subject.name}: time, and error against onnxruntime fp32", rows)
    report.claim(
        "compile.int8", int8.value, f"time at most {INT8_TIME} of onnxruntime int8",
        int8.value <= INT8_TIME, f"{subject.name}; 95 % interval {int8.low:.3f} to {int8.high:.3f}",
    )  # fmt: skip
    value = errors["8 bits int8"] / errors["onnxruntime int8"]
    taken = paired(seconds["8 bits int8"], seconds["onnxruntime int8"])
    note = f"{subject.name}, 8 bits, at {taken} of its time; 6 bits: "
    note += f"{errors['6 bits int8'] / errors['onnxruntime int8']:.2f}"
    is_met = value <= 1.0 and taken.value <= 1.0
    report.claim("cpu.error", value, "error at most onnxruntime int8's at no more time", is_met, note)
    if subject.name == "BERT-base":
        own = paired(seconds["6 bits int8"], seconds["pliant"])
        note = f"BERT-base, decoded in flight: {fp32}; the same weights in int8: {own}"
        bar = "time with 6-bit weights at most our own fp32's"
        report.claim("compile.memory", fp32.value, bar, fp32.value <= 1.0, note)


def answer_error(answer: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference divided by that of the answer."""
    difference = answer.astype(np.float64) - wanted
    return float(np.sqrt(np.square(difference).mean() / np.square(wanted, dtype=np.float64).mean()))


def _memory(report: Report, subject: Subject) -> None:
    starts: dict[str, Start] = {
        "onnxruntime": fresh("onnxruntime", subject.fp32, subject.feeds),
        "onnxruntime int8": fresh("onnxruntime", subject.int8, subject.feeds),
        "pliant": fresh("pliant", subject.fp32, subject.feeds),
    }
    for name, directory in subject.compiled.items():
        starts[name] = fresh(name, subject.fp32, subject.feeds)
        starts[f"{name}, loaded"] = fresh("loaded", directory, subject.feeds)
    rows = [
        {
            "runtime": name,
            "peak MB": start.peak_mb,
            "/ onnxruntime": start.peak_mb / starts["onnxruntime"].peak_mb,
            "/ onnxruntime int8": start.peak_mb / starts["onnxruntime int8"].peak_mb,
            "first answer s": start.process_s,
        }
        for name, start in starts.items()
    ]
    report.table(f"{subject.name}: peak RSS of a fresh process, two threads, to its first answer", rows)
    bars = (
        ("compile.memory", "6 bits", "onnxruntime", FP32_MEMORY),
        ("compile.int8", "6 bits int8", "onnxruntime int8", INT8_MEMORY),
        ("compile.int8", "8 bits int8", "onnxruntime int8", INT8_MEMORY),
    )
    for claim, name, peer, bar in bars if subject.name == "BERT-base" else bars[1:]:
        value = starts[f"{name}, loaded"].peak_mb / starts[peer].peak_mb
        whole = starts[name].peak_mb / starts[peer].peak_mb
        note = (
            f"{subject.name}, {name}, from a compiled directory; a process that compiles first: {whole:.3f}"
        )
        report.claim(claim, value, f"peak RSS at most {bar} of {peer}'s", value <= bar, note)


if __name__ == "__main__":
    main()
