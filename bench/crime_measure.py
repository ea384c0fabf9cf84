"""Measure the times of the three models on this machine by length, alone and under load.

    python bench/crime_measure.py DIR

The latest measurement replaces the previous one; the spread of its times is stored too, and printed on the
page.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from report import commit

FILE = "measured-times.json"

NAMES = {"CoVe-300": "random:cove-300", "CoVe-200": "random:cove-200", "IMDB": "imdb-lstm"}
_COVE = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 50, 64)
_LENGTHS = {"CoVe-300": _COVE, "CoVe-200": _COVE, "IMDB": (1, 10, 30, 80, 150, 250, 400, 800, 1600, 2600)}
_AT_ONCE = (1, 4, 8)


def measure(quick: bool) -> dict[str, Any]:
    """Seconds by model and length, one thread; for Figure 6 by number of concurrent inferences, CoVe-300."""
    import pliant

    rounds = 10 if quick else 60
    models = {name: pliant.open(source, threads=1) for name, source in NAMES.items()}
    times = {name: _times(model, _LENGTHS[name], rounds) for name, model in models.items()}
    at_once = {}
    for n in _AT_ONCE[: 2 if quick else None]:
        with _beside(n - 1):
            at_once[str(n)] = _times(models["CoVe-300"], _COVE, 4 if quick else 20)
    slopes = {n: _slope(rows) for n, rows in at_once.items()}
    most = max(slopes, key=int)
    found = {"times": times, "at once": at_once, "loaded": slopes[most] / slopes["1"]}
    return found | {"spread": _spread(found), "commit": commit()}


def _spread(found: dict[str, Any]) -> float:
    """The standard deviation of the times divided by their mean: the median over models and lengths."""
    rows = [row for rows in found["times"].values() for row in rows]
    return float(np.median([np.std(seconds) / np.mean(seconds) for _, seconds in rows]))


def _slope(rows: Sequence[tuple[int, list[float]]]) -> float:
    means = [float(np.mean(seconds)) for _, seconds in rows]
    return float(np.polyfit([n for n, _ in rows], means, 1)[0])


def _times(model: Any, lengths: Sequence[int], rounds: int) -> list[tuple[int, list[float]]]:
    """Lengths in a new order every round."""
    random = np.random.default_rng(0)
    inputs = {n: {"ids": np.random.default_rng(n).integers(0, model.vocab, (1, n))} for n in lengths}
    found: dict[int, list[float]] = {n: [] for n in lengths}
    for n in lengths:
        model.run(inputs[n])
    for _ in range(rounds):
        for n in random.permutation(np.array(lengths)).tolist():
            start = time.perf_counter()
            model.run(inputs[n])
            found[n].append(time.perf_counter() - start)
    return list(found.items())


@contextmanager
def _beside(n: int) -> Iterator[None]:
    """Run `n` other processes that answer inputs of random lengths during the block."""
    context = multiprocessing.get_context("spawn")
    end, ready = context.Event(), context.Semaphore(0)
    others = [context.Process(target=_other, args=(seed, end, ready), daemon=True) for seed in range(n)]
    for process in others:
        process.start()
    try:
        for _ in others:
            if not ready.acquire(timeout=120):
                raise RuntimeError("another inference did not start within two minutes")
        yield
    finally:
        end.set()
        for process in others:
            process.join(10)


def _other(seed: int, end: Event, ready: Any) -> None:
    import pliant

    model = pliant.open(NAMES["CoVe-300"], threads=1)
    random = np.random.default_rng(seed)
    ready.release()
    while not end.is_set():
        n_words = int(random.integers(1, 64))
        model.run({"ids": random.integers(0, model.vocab, (1, n_words))})


if __name__ == "__main__":
    path = Path(sys.argv[1]) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measure(False), indent=1))
