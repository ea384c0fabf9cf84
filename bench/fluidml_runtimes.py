"""Table 2 and Table 4: every schedule and every peer on one model, each in a fresh process, interleaved.

Peak memory is that of the process at its first answer, including import and loading.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fluidml_allocations import build_counter
from fluidml_models import Subject
from paired import paired
from report import interleaved
from serving import NotRunError, Server, compiled_directory, fresh

OURS = {"pliant": "static", "none": "none", "paper": "paper", "exact": "exact"}
"""Our runtimes, and the schedule each runs; `pliant` is the default."""

PEERS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
    "torch compiled": "torch",
    "tvm": "tvm",
}
"""Peers, and the module each needs."""

SLOW_S = 3.0
"""Slower runtimes are measured by their first run only."""

ALONE = ("none", "tvm", "loaded")
"""Runtimes that are not interleaved: too slow, or measured only at their start."""

ONNX_MLIR = "not installable: no package"


def measure(
    subject: Subject,
    same: Mapping[str, str],
    cache: Path,
    folder: Path,
    rounds: int,
    skipped: tuple[str, ...],
) -> dict[str, Any]:
    """By runtime: its start, seconds of its interleaved runs, its largest difference from onnxruntime.

    `same` names for each schedule the first one with the same program, which is run for all of them.
    `missing` has the reasons for missing runtimes.
    """
    found: dict[str, Any] = {"starts": {}, "seconds": {}, "differences": {}, "missing": {}, "notes": {}}
    files = _files(subject, folder, found, skipped)
    names = [x for x in files if x not in OURS or same[OURS[x]] == OURS[x]]
    answers: dict[str, np.ndarray] = {}
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in (x for x in names if x not in ALONE):
            server = _opened(name, files[name], subject, cache, found, answers)
            if server is not None:
                servers[name] = stack.enter_context(server)
        found["seconds"], _ = interleaved({x: s.seconds for x, s in servers.items()}, rounds)
    for name in (x for x in names if x in ALONE):
        counter = build_counter(folder) if name == "tvm" and shutil.which("cc") else None
        server = _opened(name, files[name], subject, cache, found, answers, counter)
        if server is not None:
            with server:
                found["seconds"] |= _alone(name, server)
    theirs = answers["onnxruntime"]
    np.save(expected_file(subject), theirs)
    found["differences"] = {x: float(np.abs(y - theirs).max()) for x, y in answers.items()}
    return found


def _alone(name: str, server: Server) -> dict[str, list[float]]:
    first_s = server.start.first_s
    if name == "loaded":  # the program of `pliant`: only its start is measured
        return {}
    return {name: [first_s] if first_s > SLOW_S else [server.seconds() for _ in range(3)]}


def prepare(subject: Subject, folder: Path) -> None:
    """Build the peers' files, which takes minutes and is not measured."""
    found: dict[str, Any] = {"missing": {}, "notes": {}}
    files = _files(subject, folder, found, ())
    if "torch compiled" in files:
        with suppress(NotRunError):
            fresh("torch compiled", subject.file, subject.feeds)


def expected_file(subject: Subject) -> Path:
    """The file with onnxruntime's answer, for comparison."""
    return subject.feeds.with_suffix(".expected.npy")


def latency_row(subject: str, found: Mapping[str, Any], same: Mapping[str, str]) -> dict[str, object]:
    """A model's row of Table 2: medians in milliseconds."""
    row: dict[str, object] = {"model": subject}
    for name, kind in OURS.items():
        title = f"{kind} [ms]" if name != "pliant" else "static, what users get [ms]"
        first = runtime_of(same[kind])
        row[title] = _ms(found["seconds"].get(name)) if first == name else f"= {OURS[first]}"
    for name in PEERS:
        row[f"{name} [ms]"] = _ms(found["seconds"].get(name)) or "-"
    return row | {"ONNX-MLIR": ONNX_MLIR}


def ratio_rows(subject: str, found: Mapping[str, Any]) -> list[dict[str, object]]:
    """A row for each runtime that ran: ratios to onnxruntime, and the difference of its outputs."""
    rows = []
    base = found["seconds"]["onnxruntime"]
    for name in (*OURS, *PEERS):
        taken = found["seconds"].get(name)
        if taken is None and name not in found["missing"]:
            continue
        row: dict[str, object] = {"model": subject, "runtime": name}
        if taken is None:
            said = {"runs": 0, "median [ms]": "-", "/ onnxruntime": "-"}
            rows.append(row | said | {"largest difference": "-", "note": found["missing"][name]})
            continue
        is_paired = len(taken) == len(base)
        ratio = paired(taken, base) if is_paired else median(taken) / median(base)
        row |= {"runs": len(taken), "median [ms]": 1e3 * median(taken)}
        row |= {"/ onnxruntime": str(ratio) if is_paired else ratio}
        note = found["notes"].get(name, "")
        rows.append(row | {"largest difference": found["differences"][name], "note": note})
    return rows


def memory_row(subject: Subject, found: Mapping[str, Any], nothing_mb: float) -> dict[str, object]:
    """A model's row of Table 4: peaks in megabytes."""
    peaks = {name: start["peak_mb"] for name, start in found["starts"].items()}
    ort = peaks["onnxruntime"]
    return {
        "model": subject.name,
        "file": subject.file.stat().st_size / 1e6,
        "pliant.compile of the file": peaks["pliant"],
        "pliant.load of a directory": peaks.get("loaded", "-"),
        **{name: peaks.get(name, "-") for name in PEERS},
        "python and numpy": nothing_mb,
        "compile / onnxruntime": peaks["pliant"] / ort,
        "load / onnxruntime": peaks["loaded"] / ort if "loaded" in peaks else "-",
    }


def runtime_of(kind: str) -> str:
    """Which of OURS runs a schedule."""
    return next(name for name, own in OURS.items() if own == kind)


def wall(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """Seconds of runs by schedule."""
    return {OURS[name]: taken for name, taken in found["seconds"].items() if name in OURS}


def _files(
    subject: Subject, folder: Path, found: dict[str, Any], skipped: tuple[str, ...]
) -> dict[str, Path]:
    """The file that each runtime opens; directories and libraries are built in separate processes."""
    files = dict.fromkeys(OURS, subject.file)
    for name, needs in PEERS.items():
        if name in skipped:
            found["missing"][name] = "not in a quick run"
        elif find_spec(needs) is None:
            found["missing"][name] = f"not installed: pip install {_PACKAGES.get(needs, needs)}"
        else:
            files[name] = subject.file
    files["loaded"] = compiled_directory(subject.file, folder / f"{subject.file.stem}.pliant")
    if "tvm" in files:
        try:
            files["tvm"], found["notes"]["tvm"] = _tvm_library(subject, folder)
        except NotRunError as error:
            found["missing"]["tvm"] = str(error)
            del files["tvm"]
    return files


def _tvm_library(subject: Subject, folder: Path) -> tuple[Path, str]:
    """TVM's library, built if it is missing, and how it was built. Raises NotRunError if the build fails."""
    library, said = folder / f"{subject.file.stem}.tvm.so", folder / f"{subject.file.stem}.tvm.txt"
    if not (library.exists() and said.exists()):
        script = Path(__file__).with_name("tvm_build.py")
        build = [sys.executable, str(script), str(subject.file), str(library)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotRunError(f"does not build: {done.stderr.strip().splitlines()[-1][:160]}")
        said.write_text(f"untuned; {done.stdout.strip().splitlines()[-1]}")
    return library, said.read_text()


_PACKAGES = {"tvm": "apache-tvm"}


def _opened(
    name: str,
    file: Path,
    subject: Subject,
    cache: Path,
    found: dict[str, Any],
    answers: dict[str, np.ndarray],
    preload: Path | None = None,
) -> Server | None:
    try:
        server = Server(name, file, subject.feeds, cache=cache, preload=preload)
    except NotRunError as error:
        found["missing"][name] = str(error)
        return None
    found["starts"][name] = asdict(server.start)
    answers[name] = server.answer
    return server


def _ms(taken: list[float] | None) -> float | None:
    return None if not taken else 1e3 * median(taken)
