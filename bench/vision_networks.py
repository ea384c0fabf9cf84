"""[compile.vision] Six architectures of torchvision beside onnxruntime: batch 1 and 4, two threads and one.

fp32, weights random, wall time. Both runtimes have the same number of threads, separate processes, and an
untimed run before each timed one; they run interleaved.
"""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from paired import Ratio, paired
from report import Report, interleaved, options
from serving import Server, write_feeds

NETWORKS = (
    "mobilenet_v3_large",
    "resnet50",
    "resnext50_32x4d",
    "efficientnet_b0",
    "convnext_tiny",
    "vit_b_16",
)
BATCHES, THREADS = (1, 4), (2, 1)
BAR, MOST_ERROR = 1.0, 1e-4
_QUICK = ("mobilenet_v3_large",)
_PEERS = ("pliant", "onnxruntime")
_FEWEST, _MOST, _CELL_S = 7, 31, 12.0
"""The least and most rounds of a cell, and the time limit of a cell if the least rounds allow it."""


def main() -> None:
    opts = options(__doc__ or "", _add_options)
    if opts.model or opts.batch or opts.threads:
        opts.no_results = True  # the page must have all of them
    report = Report("vision_networks", "fp32, 224 x 224, random weights; a process for each runtime", opts)
    with TemporaryDirectory() as folder:
        _networks(report, Path(folder), opts)
    report.finish()


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--model", choices=NETWORKS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--batch", type=int, choices=BATCHES, help="only this batch")
    parser.add_argument("--threads", type=int, choices=THREADS, help="only this number of threads")
    parser.add_argument("--models", metavar="DIR", type=Path, help="keep the exported models here")


def _networks(report: Report, folder: Path, opts: Namespace) -> None:
    """A row and a claim for each network, batch and number of threads."""
    names = opts.model or (_QUICK if opts.quick else NETWORKS)
    batches = (opts.batch,) if opts.batch else BATCHES[:1] if opts.quick else BATCHES
    threads = (opts.threads,) if opts.threads else THREADS
    rows = []
    for name, batch, n in product(names, batches, threads):
        row, ratio, error = _measured(name, batch, n, opts.models or folder)
        rows.append(row)
        what = f"{name}, batch {batch}, {n} thread{'s' if n > 1 else ''}"
        note = f"{what}; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}; largest error {error:.1e}"
        holds = ratio.value <= BAR and error <= MOST_ERROR
        report.claim("compile.vision", ratio.value, f"at most {BAR} of onnxruntime", holds, note)
    report.table("Networks of torchvision (medians; the ratio is of paired runs)", rows)


def _measured(name: str, batch: int, threads: int, folder: Path) -> tuple[dict[str, object], Ratio, float]:
    """A row, the ratio of wall times, and the largest difference over the largest answer."""
    path = _exported(name, batch, folder)
    x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
    feeds = write_feeds({"x": x}, path.with_suffix(".npz"))
    with ExitStack() as stack:
        servers = {peer: stack.enter_context(Server(peer, path, feeds, threads)) for peer in _PEERS}
        want = servers["onnxruntime"].answer
        error = float(np.abs(servers["pliant"].answer - want).max() / np.abs(want).max())
        start = perf_counter()
        interleaved({peer: server.seconds for peer, server in servers.items()}, 1)
        rounds = int(_CELL_S / (perf_counter() - start))
        runs = {peer: server.seconds for peer, server in servers.items()}
        seconds, _ = interleaved(runs, min(max(rounds, _FEWEST), _MOST))
    ratio = paired(seconds["pliant"], seconds["onnxruntime"])
    row: dict[str, object] = {"network": name, "batch": batch, "threads": threads}
    row |= {f"{peer} ms": 1e3 * median(taken) for peer, taken in seconds.items()}
    row |= {"/ onnxruntime": str(ratio), "rounds": len(seconds["pliant"])}
    row["largest difference / largest"] = error
    return row, ratio, error


def _exported(name: str, batch: int, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{batch}.onnx"
    if not path.exists():
        from vision_models import export

        export(name, path, batch)
    return path


if __name__ == "__main__":
    main()
