"""New shapes against onnxruntime: MiniLM over random lengths, and a decoder whose past grows by one row per
step.

Both runtimes see every shape for the first time in a fresh process; the first call is not counted, but later
ones count fully, including compiling and binding. Kernels are in the cache on disk, as after any earlier run.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

import shapes_peer
from decoder_model import Sizes, export_decoder, random_past
from report import Report, options
from serving import write_feeds
from text_models import MINILM, export

PEERS = ("pliant", "onnxruntime")
LENGTHS, LONGEST, STEPS, PAST = 60, 256, 64, 8


class _Peer:
    """A runtime in a separate process, run in turns."""

    def __init__(self, name: str, file: Path) -> None:
        command = [sys.executable, str(shapes_peer.__file__), name, str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def turn(self, **wanted: object) -> list[float]:
        """Seconds of each call of a turn."""
        assert self._process.stdin is not None
        print(json.dumps(wanted), file=self._process.stdin, flush=True)
        found: list[float] = json.loads(self._line("["))
        return found

    def _line(self, start: str) -> str:
        assert self._process.stdout is not None
        return next(line for line in self._process.stdout if line.startswith(start))


def main() -> None:
    opts = options(__doc__ or "")
    rounds, repeats, decoders = (3, 1, 2) if opts.quick else (10, 3, 7)
    workload = (
        f"{LENGTHS} random lengths of 1 to {LONGEST} in {rounds} shuffled rounds, {repeats} times; "
        f"{STEPS} steps of a decoder of 6 layers of {Sizes().hidden} behind {PAST} rows, {decoders} times; "
        "two threads"
    )
    report = Report("shapes", workload, opts)
    with TemporaryDirectory() as name:
        folder = Path(name)
        minilm = export(MINILM, folder / "minilm.onnx", is_open=True)
        decoder = export_decoder(folder / "decoder.onnx", Sizes())
        past = write_feeds(random_past(Sizes(), PAST), folder / "past.npz")
        _texts(minilm, folder, 1, 0)  # compile kernels once for all processes
        _decoded(decoder, past, folder)
        texts = [_texts(minilm, folder, rounds, seed) for seed in range(repeats)]
        steps = [_decoded(decoder, past, folder) for _ in range(decoders)]
    report.table("MiniLM from ONNX, all calls but the first", [_row(run) for run in texts])
    report.table(f"decoder, {STEPS} steps behind the first", [_row(run) for run in steps])
    _claim(report, "MiniLM", texts)
    _claim(report, "decoder", steps)
    report.note(
        "The decoder's first step and the first text are not counted; the tables show their times. Peers run "
        "in separate processes: interleaved by round for the texts, one after the other for the decoder."
    )
    report.finish()


def _texts(model: Path, folder: Path, rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds of each call, by peer."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LONGEST + 1, LENGTHS)
    seconds: dict[str, list[float]] = {name: [] for name in PEERS}
    with ExitStack() as stack:
        peers = {name: stack.enter_context(_Peer(name, model)) for name in PEERS}
        for round_ in range(rounds):
            order = rng.permutation(lengths).tolist()
            for name in PEERS if round_ % 2 == 0 else PEERS[::-1]:
                out = str(folder / f"{name}.npy")
                seconds[name] += peers[name].turn(lengths=order, out=out)
    _check_equal(folder)
    return seconds


def _decoded(model: Path, past: Path, folder: Path) -> dict[str, list[float]]:
    seconds = {}
    for name in PEERS:
        with _Peer(name, model) as peer:
            seconds[name] = peer.turn(feeds=str(past), steps=STEPS + 1, out=str(folder / f"{name}.npy"))
    _check_equal(folder)
    return seconds


def _check_equal(folder: Path) -> None:
    ours, theirs = (np.load(folder / f"{name}.npy") for name in PEERS)
    worst = np.abs(ours - theirs).max() / np.abs(theirs).max()
    if worst > 1e-4:
        raise SystemExit(f"answers differ by {worst:.2g} of the largest number.")


def _row(run: Mapping[str, Sequence[float]]) -> dict[str, object]:
    ours, theirs = (run[name] for name in PEERS)
    return {
        "pliant s": sum(ours[1:]),
        "onnxruntime s": sum(theirs[1:]),
        "ratio": _ratio(run),
        "first call ms": ours[0] * 1e3,
        "onnxruntime first ms": theirs[0] * 1e3,
        "longest later call ms": max(ours[1:]) * 1e3,
        "median later call ms": median(ours[1:]) * 1e3,
    }


def _ratio(run: Mapping[str, Sequence[float]]) -> float:
    return sum(run["pliant"][1:]) / sum(run["onnxruntime"][1:])


def _claim(report: Report, name: str, runs: Sequence[Mapping[str, Sequence[float]]]) -> None:
    ratios = sorted(map(_ratio, runs))
    note = f"{name}, over {len(runs)} fresh pairs of processes; {ratios[0]:.2f} to {ratios[-1]:.2f}"
    report.claim(
        "compile.shapes", median(ratios), "at most 1.0 of onnxruntime's time", median(ratios) <= 1.0, note
    )


if __name__ == "__main__":
    main()
