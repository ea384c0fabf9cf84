"""Actors that are killed at the first sight of one row, where the actors of a test's Ray can import them."""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np

from pliant.cli import eval_ray
from pliant.ir.dilation import Dilation
from pliant.ray import Predictor

MARKER = "PLIANT_TEST_KILLED"
"""The variable that names a file, there once an actor was killed."""


def kill_once(marker: Path) -> None:
    """The end of this process, unless another ended here before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class FragilePredictor:
    """A predictor that says which process answered."""

    def __init__(self, marker: str) -> None:
        self._predictor, self._marker = Predictor("sst2"), Path(marker)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if 40 in batch["id"]:
            kill_once(self._marker)
        return self._predictor(batch) | {"process": np.full(len(batch["id"]), os.getpid())}


class FragileEvaluator:
    """What `pliant eval` runs, until it sees the example of MARK."""

    def __init__(self, *args: Any) -> None:
        self._evaluator = eval_ray.Evaluator(*args)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if any("marked" in pickle.loads(item)[0] for item in batch["item"]):
            kill_once(Path(os.environ[MARKER]))
        return self._evaluator(batch)


def unequal(context: Any) -> dict[str, Any]:
    """Options of a replica: the second takes four times as long. It writes down which process it is."""
    rank = context.rank.rank
    folder = Path(os.environ[MARKER]).parent
    (folder / f"{context.replica_id.unique_id}.{rank}").write_text(str(os.getpid()))
    return {"dilation": Dilation(4.0 if rank else 1.0)}
