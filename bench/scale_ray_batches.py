"""A data set through actors of Ray Data: rows per second against bare loops; each row once with an actor
killed.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import ray.data

from pliant.ray import Predictor
from report import Report
from scale_ray_bare import bare_loops

ACTORS, BATCH, BLOCK = 2, 64, 512
TOLERANCE = 1e-5
"""The tolerance of logits: float32 sums in another order when other rows run together."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The least throughput relative to actors times a bare loop, and the rows with an actor killed."""

    share: float
    is_killed: bool
    lost_or_twice: int
    other_answers: int


class RecordedPredictor:
    """A predictor that records start, end and process of each batch; killed once, at row `at`."""

    def __init__(self, model: str, marker: str = "", at: int = -1) -> None:
        self._predictor, self._marker, self._at = Predictor(model), Path(marker), at

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        begun_s = time.monotonic()
        answers = self._predictor(batch)
        if self._at in batch["id"] and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        where = {"actor": os.getpid(), "begun_s": begun_s, "ended_s": time.monotonic()}
        n = len(batch["id"])
        return {
            "id": batch["id"],
            "logits": answers["logits"],
            **{k: np.full(n, v) for k, v in where.items()},
        }


@dataclass(frozen=True, slots=True)
class DataSetRun:
    """The output rows, column by column, and the total seconds, from the call to the last row."""

    columns: "dict[str, np.ndarray[Any, Any]]"
    whole_s: float

    def rate(self) -> float:
        """Rows per second between the start of the last actor and the end of the first one.

        A batch counts with its part in this interval, and time between batches is included; the actors'
        start-up is not.
        """
        actor, begun_s, ended_s = (self.columns[name] for name in ("actor", "begun_s", "ended_s"))
        each = [actor == one for one in np.unique(actor)]
        first_s = max(begun_s[one].min() for one in each)
        last_s = min(ended_s[one].max() for one in each)
        within_s = np.minimum(ended_s, last_s) - np.maximum(begun_s, first_s)
        return float((np.maximum(within_s, 0.0) / (ended_s - begun_s)).sum() / (last_s - first_s))

    def lost_or_twice(self, n: int) -> int:
        came = Counter(self.columns["id"].tolist())
        return sum(came[i] != 1 for i in range(n)) + len(came.keys() - set(range(n)))

    def other_answers(self, right: "np.ndarray[Any, Any]") -> int:
        """The number of rows whose logits differ from those of the bare loops."""
        off = np.abs(self.columns["logits"] - right[self.columns["id"]]).max(axis=1)
        return int((~(off <= TOLERANCE)).sum())


def batched(report: Report, model: str, texts: Sequence[str], rounds: int, folder: Path) -> BatchResult:
    """Rounds of actors between bare loops, then one with an actor killed."""
    rows, shares = [], []
    bare = bare_loops(model, texts, ACTORS, BATCH)
    for _ in range(rounds):
        before, ran = bare, _through(texts, model)
        bare = bare_loops(model, texts, ACTORS, BATCH)
        rate = ran.rate()
        shares.append(rate / (ACTORS * mean(before.rates + bare.rates)))
        row = _row("all actors", ran, texts, before.logits, before.rates + bare.rates)
        rows.append(row | _rates(f"{rate:.0f}", f"{shares[-1]:.3f}"))
    marker = folder / "killed"
    ran = _through(texts, model, str(marker), len(texts) // 2)
    rows.append(_row("one killed in the middle", ran, texts, bare.logits, bare.rates) | _rates("", ""))
    report.table(f"{len(texts)} reviews, {model}, {ACTORS} actors of one thread, batches of {BATCH}", rows)
    report.note(
        "For actors, rows per second are measured while all of them work: from the time when the last one "
        "begins its first batch until the first one ends its last batch. The total seconds include Ray's "
        "start of actors, their imports and the opening of the model. Bare loops are processes without Ray, "
        f"one thread each, {ACTORS} at once, before and after each run of actors. Ray lowers the priority of "
        "workers (niceness 15), so that other processes take time only from actors; here they have that of "
        f"bare loops (niceness 0). Logits are equal within {TOLERANCE:g}."
    )
    return BatchResult(
        min(shares), marker.exists(), ran.lost_or_twice(len(texts)), ran.other_answers(bare.logits)
    )


def _row(
    run: str, ran: DataSetRun, texts: Sequence[str], right: "np.ndarray[Any, Any]", rates: Sequence[float]
) -> dict[str, Any]:
    return {
        "run": run,
        "rows": len(ran.columns["id"]),
        "lost or twice": ran.lost_or_twice(len(texts)),
        "other answers": ran.other_answers(right),
        "seconds in all": ran.whole_s,
        "a bare loop's rows/s": ", ".join(f"{rate:.0f}" for rate in rates),
    }


def _rates(rate: str, share: str) -> dict[str, str]:
    return {"rows/s, all at work": rate, "of actors x bare": share}


def _through(texts: Sequence[str], *args: Any) -> DataSetRun:
    table = [{"id": i, "text": text} for i, text in enumerate(texts)]
    data = ray.data.from_items(table, override_num_blocks=max(1, len(texts) // BLOCK))
    start_s = time.monotonic()
    answered = data.map_batches(
        RecordedPredictor, fn_constructor_args=args, batch_size=BATCH, num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=ACTORS),
    )  # fmt: skip
    parts = list(answered.iter_batches(batch_size=None))
    whole_s = time.monotonic() - start_s
    return DataSetRun({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, whole_s)
