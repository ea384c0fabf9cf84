"""Weights of six bits beside float32 and onnxruntime's dynamic int8: time, memory and error of transformers.

Ours are directories that `pliant compile --weights 6` wrote, loaded; peaks are of fresh processes at their
first answer. Errors are of the output against onnxruntime's in float32, root mean square over its own.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from paired import paired
from report import Report, interleaved
from serving import Server, compiled_directory

BITS = 6


@dataclass(frozen=True, slots=True)
class Files:
    """An exported model, and the feeds that every runtime reads."""

    model: Path
    feeds: Path


def coded(report: Report, models: Mapping[str, Files], folder: Path, rounds: int) -> None:
    """The table, `compile.memory` for coded weights (of BERT-base) and `compile.int8`."""
    rows = []
    for name, own in models.items():
        rows += _measured(report, name, own, folder, rounds)
    report.table(f"Weights of {BITS} bits (medians of paired ratios, 95 % intervals)", rows)


def _measured(report: Report, name: str, own: Files, folder: Path, rounds: int) -> list[dict[str, object]]:
    stem, bits = own.model.stem, ("--weights", str(BITS))
    opened = {
        "fp32": ("loaded", compiled_directory(own.model, folder / f"{stem}-fp32")),
        "6 bits": ("loaded", compiled_directory(own.model, folder / f"{stem}-6", *bits)),
        "6 bits in int8": (
            "loaded",
            compiled_directory(own.model, folder / f"{stem}-6-int8", *bits, "--compute", "int8"),
        ),
        "onnxruntime": ("onnxruntime", own.model),
        "onnxruntime int8": ("onnxruntime", _quantized(own.model, folder / f"{stem}-int8.onnx")),
    }
    with ExitStack() as stack:
        servers = {
            what: stack.enter_context(Server(runtime, file, own.feeds))
            for what, (runtime, file) in opened.items()
        }
        want = servers["onnxruntime"].answer
        errors = {what: _error(server.answer, want) for what, server in servers.items()}
        peaks = {what: server.start.peak_mb for what, server in servers.items()}
        seconds, _ = interleaved({what: server.seconds for what, server in servers.items()}, rounds)
    in_flight = paired(seconds["6 bits"], seconds["fp32"])
    whole = paired(seconds["6 bits in int8"], seconds["onnxruntime int8"])
    memory = peaks["6 bits"] / peaks["onnxruntime"]
    memory8 = peaks["6 bits in int8"] / peaks["onnxruntime int8"]
    if name == "BERT-base":
        report.claim(
            "compile.memory",
            memory,
            "peak RSS at most 0.25 of onnxruntime's fp32 with 6-bit weights, at no more than our fp32's time",
            memory <= 0.25 and in_flight.value <= 1.0,
            f"loaded from its directory; time / our fp32 {in_flight}",
        )
    report.claim(
        "compile.int8",
        whole.value,
        "at most 0.85 of onnxruntime's dynamic int8 time and 0.65 of its RSS, error no larger than its",
        whole.value <= 0.85 and memory8 <= 0.65 and errors["6 bits in int8"] <= errors["onnxruntime int8"],
        f"{name}; time {whole}; RSS {memory8:.3f}; error {errors['6 bits in int8']:.4f} "
        f"and its {errors['onnxruntime int8']:.4f}",
    )
    return [
        {
            "model": name,
            "what": what,
            "median ms": 1e3 * median(taken),
            "/ our fp32": str(paired(taken, seconds["fp32"])),
            "/ onnxruntime": str(paired(taken, seconds["onnxruntime"])),
            "/ onnxruntime int8": str(paired(taken, seconds["onnxruntime int8"])),
            "peak MB": peaks[what],
            "error": errors[what],
        }
        for what, taken in seconds.items()
    ]


def _quantized(model: Path, out: Path) -> Path:
    """By onnxruntime's dynamic quantization, int8 weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(model, out, weight_type=QuantType.QInt8)
    return out


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
