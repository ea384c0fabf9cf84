"""Measure each form in which operators can run once, and store the times.

The code to run is given as a callable; times are stored in one file per device, thread count and kernel
version.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import msgspec

FormRun = Callable[[], object]
"""One run of a form."""

_ROUNDS, _STABLE_ROUNDS = 24, 4
_ROUND_S = 3e-4
_STABLE = 1.02
_HOPELESS = 3.0
_GROUP_S = 1.0


@dataclass(frozen=True, slots=True)
class CostFile:
    """Times by key on disk. A damaged file is ignored; times that cannot be written are measured again."""

    path: Path

    def load(self) -> dict[str, float]:
        """Return the stored times, without invalid ones."""
        try:
            table = msgspec.json.decode(self.path.read_bytes(), type=dict[str, float])
        except (OSError, UnicodeDecodeError, msgspec.DecodeError):
            return {}
        return {key: s for key, s in table.items() if math.isfinite(s) and s >= 0.0}

    def add(self, table: Mapping[str, float]) -> None:
        """Add times to the file atomically."""
        temporary = self.path.with_name(f".{self.path.name}.{uuid4().hex}")  # threads share process numbers
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(self.load() | dict(table)))
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()


def cost_file(cache: Path, cpu: str, n_threads: int, version: str) -> CostFile:
    """Return the file of a device; each CPU, number of threads and kernel version has its own."""
    key = sha256(f"{cpu}\n{n_threads}\n{version}".encode()).hexdigest()[:24]
    return CostFile(cache / "costs" / f"{key}.json")


def measure(
    runs: Mapping[str, FormRun], clock: Callable[[], float] = time.thread_time, default: str = ""
) -> dict[str, float]:
    """Return the least seconds seen of each form, measured in turns until their ranking is stable.

    A form whose first run is much slower (factor _HOPELESS) than the fastest is not run again, except
    `default`, the reference for the others.
    """
    best = {key: _once(run, clock) for key, run in runs.items()}
    fastest = min(best.values(), default=0.0)
    contest = [key for key in runs if best[key] <= _HOPELESS * fastest or key == default]
    turns = {key: max(1, min(64, round(_ROUND_S / max(best[key], 1e-7)))) for key in contest}
    ranking: Sequence[str] = ()
    stable, started = 0, clock()
    for _ in range(_ROUNDS):
        before = dict(best)
        for key in contest:
            best[key] = min(best[key], _several(runs[key], turns[key], clock))
        now = sorted(contest, key=lambda key: best[key])
        is_settled = all(before[key] <= _STABLE * best[key] for key in contest)
        stable = stable + 1 if is_settled and now[:1] == ranking[:1] else 0
        ranking = now
        if stable >= _STABLE_ROUNDS or clock() - started > _GROUP_S:
            break
    return best


def _once(run: FormRun, clock: Callable[[], float]) -> float:
    """Return the second of two runs: the first has cold caches and untouched pages."""
    first = _several(run, 1, clock)
    return first if first > 0.05 else min(first, _several(run, 1, clock))


def _several(run: FormRun, n: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(n):
        run()
    return (clock() - start) / n
