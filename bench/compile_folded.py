"""Models with stored weight formats, against onnxruntime: weights in int8 or float16, ViT-B/16 in batches.

MiniLM-L6 of bench/text_models.py, 16 and 128 tokens, its matrices stored as Cast and Mul over int8, as
DequantizeLinear by axis, and as float16 with a Cast; ViT-B/16 on nn.MultiheadAttention with batch_first, in
batches of 1, 2 and 8. Two threads; each runtime has its own process, and they run interleaved.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from compile import perturbed
from paired import paired
from report import Report, interleaved, options
from runtimes import THREADS
from serving import Server, fresh, write_feeds
from stored_models import STYLES, export_vit, store
from text_models import MINILM, feeds

BAR = 1.0
"""The bar, relative to onnxruntime's time."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model's file and feeds, and whether its time counts for the claim."""

    name: str
    model: Path
    feeds: Path
    is_claimed: bool = True


def main() -> None:
    opts = options(__doc__ or "")
    report = Report("compile_folded", f"{THREADS} threads, fp32 activations", opts)
    report.note(
        "onnxruntime multiplies in int8, with rounded activations, if a DequantizeLinear precedes a product; "
        "pliant multiplies in float32 with the same weights, so the answers of that row differ by more."
    )
    with TemporaryDirectory() as name:
        folder = Path(name)
        subjects = [*_stored(folder, opts.quick), *_vits(folder, opts.quick)]
        _times(report, subjects, 7 if opts.quick else 21)
        if not opts.quick:
            _memory(report, subjects)
    report.finish()


def _stored(folder: Path, is_quick: bool) -> list[Subject]:
    found = []
    for tokens in (16,) if is_quick else (16, 128):
        model = replace(MINILM, tokens=tokens)
        source = perturbed(model, folder / f"minilm{tokens}.onnx")
        given = write_feeds(feeds(model), folder / f"minilm{tokens}.npz")
        for style in ("Cast and Mul",) if is_quick else STYLES:
            path = store(source, folder / f"minilm{tokens}-{style.replace(' ', '-')}.onnx", style)
            is_claimed = style == "Cast and Mul"
            found.append(Subject(f"MiniLM-L6, {style}, {tokens} tokens", path, given, is_claimed))
    return found


def _vits(folder: Path, is_quick: bool) -> list[Subject]:
    found = []
    for batch in (2,) if is_quick else (1, 2, 8):
        path = export_vit(folder / f"vit{batch}.onnx", batch)
        pixels = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
        given = write_feeds({"x": pixels}, folder / f"vit{batch}.npz")
        found.append(Subject(f"ViT-B/16, batch {batch}", path, given, batch == 2))
    return found


def _times(report: Report, subjects: list[Subject], rounds: int) -> None:
    rows = []
    for subject in subjects:
        with ExitStack() as stack:
            servers = {
                x: stack.enter_context(Server(x, subject.model, subject.feeds))
                for x in ("pliant", "onnxruntime")
            }
            ours, theirs = (server.answer for server in servers.values())
            seconds, _ = interleaved({name: server.seconds for name, server in servers.items()}, rounds)
        ratio = paired(seconds["pliant"], seconds["onnxruntime"])
        row: dict[str, object] = {"model": subject.name}
        row |= {f"{name} ms": median(taken) * 1e3 for name, taken in seconds.items()}
        row |= {"/ onnxruntime": str(ratio)}
        row |= {"largest difference / largest": float(np.abs(ours - theirs).max() / np.abs(theirs).max())}
        rows.append(row)
        if subject.is_claimed:
            note = f"{subject.name}; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
            bar = f"at most {BAR} of onnxruntime's time"
            report.claim("compile.folded", ratio.value, bar, ratio.value <= BAR, note)
    report.table("Time (medians of paired ratios, 95 % intervals)", rows)


def _memory(report: Report, subjects: list[Subject]) -> None:
    rows = []
    for subject in subjects:
        peaks = {x: fresh(x, subject.model, subject.feeds).peak_mb for x in ("pliant", "onnxruntime")}
        rows.append(
            {"model": subject.name}
            | {f"{name} MB": peak for name, peak in peaks.items()}
            | {"/ onnxruntime": peaks["pliant"] / peaks["onnxruntime"]}
        )
    report.table("Peak RSS of a fresh process to its first answer", rows)


if __name__ == "__main__":
    main()
