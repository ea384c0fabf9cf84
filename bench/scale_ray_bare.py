"""Bare loops over batches, one in each of several concurrent processes: the reference for actors of Ray."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from pliant.api.open_endpoint import open_endpoint

_WARM = 2


@dataclass(frozen=True, slots=True)
class BareLoops:
    """Rows a second of each loop while all run, and the logits of every row, [rows, labels]."""

    rates: tuple[float, ...]
    logits: "np.ndarray[Any, Any]"


def bare_loops(model: str, texts: Sequence[str], n_loops: int, batch: int) -> BareLoops:
    """The batches of `texts`, distributed over the loops: each on one thread, opened and warmed up before any
    starts.
    """
    spawned = get_context("spawn")
    barrier, answers = spawned.Barrier(n_loops), spawned.SimpleQueue()
    batches = [texts[i : i + batch] for i in range(0, len(texts), batch)]
    loops = [
        spawned.Process(target=_loop, args=(i, model, batches[i::n_loops], barrier, answers))
        for i in range(n_loops)
    ]
    for loop in loops:
        loop.start()
    found = dict(answers.get() for _ in loops)
    for loop in loops:
        loop.join()
    each = [iter(found[i][1]) for i in range(n_loops)]
    logits = [next(each[i % n_loops]) for i in range(len(batches))]
    return BareLoops(tuple(found[i][0] for i in range(n_loops)), np.concatenate(logits))


def _loop(i: int, model: str, batches: Sequence[Sequence[str]], barrier: Any, answers: Any) -> None:
    with open_endpoint(model, threads=1) as session:
        for one in batches[:_WARM]:
            session(list(one))
        barrier.wait()
        start_s = time.perf_counter()
        replies = [session(list(one)) for one in batches]
        took_s = time.perf_counter() - start_s
    logits = [np.concatenate([reply.outputs["logits"] for reply in batch]) for batch in replies]
    answers.put((i, (sum(map(len, batches)) / took_s, logits)))
