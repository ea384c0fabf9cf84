"""Runtimes in separate processes that run interleaved, so that threads and caches are not shared.

Starts, runs and ends the processes (see runtimes.py).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import numpy as np

import runtimes
from runtimes import THREADS

PAUSE_S = 0.25
"""Pause before each run, because the threads of the previous runtime still spin for a while."""


class NotRunError(Exception):
    """A runtime exited before it answered; the message is the last line of its output."""


@dataclass(frozen=True, slots=True)
class Start:
    """The times of a fresh process to its first answer, and its peak of resident memory so far.

    `first_s` is the run alone, `start_s` includes imports and loading, and `process_s` is the parent's total
    wait, including the interpreter's start and numpy's import. `allocations` are those of that run, if a
    counter is preloaded.
    """

    first_s: float
    start_s: float
    peak_mb: float
    allocations: int | None = None
    process_s: float = 0.0


def write_feeds(feeds: Mapping[str, np.ndarray], path: Path) -> Path:
    """Write arrays by name, in order, to a file that every runtime reads."""
    np.savez(path, **feeds)  # type: ignore[arg-type]
    return path


def compiled_directory(model: Path, out: Path, *flags: str) -> Path:
    """Run `pliant compile MODEL -o OUT FLAGS` in a separate process."""
    verb = ["-c", "from pliant.cli.app import app; app()", "compile", str(model), "-o", str(out), *flags]
    subprocess.run([sys.executable, *verb], check=True, capture_output=True)
    return out


def write_bytecode() -> None:
    """Pliant's, as pip does when it installs; a checkout may have none, or that of other sources.

    A process that has to compile the modules it imports takes 0.1 s more to its first answer.
    """
    (folder,) = find_spec("pliant").submodule_search_locations or [""]  # type: ignore[union-attr]
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder], check=True)


def fresh(name: str, file: Path, feeds: Path, threads: int = THREADS, cache: Path | None = None) -> Start:
    """Start a process that answers once and exits. Raises NotRunError."""
    with Server(name, file, feeds, threads, cache) as server:
        return server.start


class Server:
    """A runtime that has answered once and then runs on request. Raises NotRunError if it cannot answer."""

    def __init__(
        self,
        name: str,
        file: Path,
        feeds: Path,
        threads: int = THREADS,
        cache: Path | None = None,
        pause_s: float = PAUSE_S,
        preload: Path | None = None,
    ) -> None:
        self._pause_s = pause_s
        label = f"{feeds.stem}-{file.stem}-{name.replace(' ', '-')}-{threads}"
        answer = feeds.with_name(f"{label}.npy")
        self._log = answer.with_suffix(".log").open("w+")
        command = [sys.executable, str(runtimes.__file__), name, str(file), str(feeds)]
        command += ["--threads", str(threads), "--serve", str(answer)]
        command += ["--cache", str(cache)] if cache else []
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "LD_PRELOAD": str(preload)} if preload else None,
        )
        said = json.loads(self._line("{"))
        self.start = Start(**said, process_s=time.perf_counter() - started)
        self.answer: np.ndarray = np.load(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def seconds(self) -> float:
        """Wall seconds of a run after an untimed one."""
        return self._asked()[0]

    def processor_s(self) -> float:
        """Processor seconds of such a run in the calling thread; with one thread, of the whole run."""
        return self._asked()[1]

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._process.communicate()
        self._log.close()

    def _asked(self) -> tuple[float, float]:
        time.sleep(self._pause_s)
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        wall, own = self._line().split()
        return float(wall), float(own)

    def _line(self, start: str = "") -> str:
        """The next line that begins with `start`; libraries may print other lines before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        self._process.wait()
        self._log.seek(0)
        said = [line.strip() for line in self._log if line.strip()]
        self._log.close()
        raise NotRunError(said[-1][:200] if said else f"ended with {self._process.returncode}")
