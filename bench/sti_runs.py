"""Cold runs of plans on slowed devices: a slowed store, real sessions, what they took and waited."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from pliant.ir.program import Compute, Load
from pliant.plan.result import Grid, Plan
from pliant.run.session import Reply, Session, SessionOptions
from pliant.store.read import Extent, Store
from sti_rig import Device, Rig


@dataclass(frozen=True, slots=True)
class Runs:
    """Cold runs of one plan: seconds, predictions, and what the compute lane waited, as shares of the run."""

    target_s: float
    seconds: np.ndarray
    predicted_s: float
    first_wait: float
    later_wait: float
    io_per_compute: float
    grids: tuple[Grid, ...]
    is_as_planned: float
    weight_bytes: int

    @property
    def n_met(self) -> int:
        return int(np.sum(self.seconds <= self.target_s))

    @property
    def met(self) -> str:
        return f"{self.n_met} of {len(self.seconds)}"


def cold_runs(
    rig: Rig,
    device: Device,
    plan: Plan,
    texts: Sequence[str],
    *,
    slow_after: Callable[[int], float] | None = None,
) -> Runs:
    """Run `plan` once a text, every read past the page cache; `slow_after(i)` seconds into run i, IO is
    slowed to a third, latencies included."""
    replies = replies_of(rig, device, plan, [*texts[:2], *texts], slow_after)[2:]
    waits = np.array([_waits(r) for r in replies])
    return Runs(
        target_s=plan.budget.latency_s,
        seconds=np.array([r.seconds for r in replies]),
        predicted_s=float(np.median([r.predicted_s for r in replies])),
        first_wait=float(np.median(waits[:, 0])),
        later_wait=float(np.median(waits[:, 1])),
        io_per_compute=float(np.median(waits[:, 2])),
        grids=tuple(r.bits for r in replies),
        is_as_planned=float(np.mean([r.bits == r.planned_bits for r in replies])),
        weight_bytes=max(r.resident_weight_bytes for r in replies),
    )


def replies_of(
    rig: Rig,
    device: Device,
    plan: Plan,
    texts: Sequence[str],
    slow_after: Callable[[int], float] | None = None,
) -> list[Reply]:
    options = SessionOptions(
        latency_s=plan.budget.latency_s, preload_bytes=plan.budget.preload_bytes, length=rig.length,
        n_threads=rig.n_threads, is_anytime=plan.is_anytime, best_effort=True,
    )  # fmt: skip
    replies: list[Reply] = []
    store = SlowedStore(rig.store, device.bandwidth, device.disk.bandwidth_Bps)
    slowed = cast(Store, store)
    with undisturbed(), Session(slowed, device.profile, options, cache=rig.cache, fixed=plan) as session:
        for i, text in enumerate(texts):
            timer = None
            if slow_after is not None and i >= 2:
                timer = threading.Timer(slow_after(i - 2), _slow, (store,))
                timer.start()
            reply = session(text)
            if timer is not None:
                timer.cancel()
                timer.join()
            session._lanes.drain()  # a cold run begins with an idle disk
            store.slower = 1.0
            replies.append(reply)
    return replies


class SlowedStore:
    """A store on a disk of less bandwidth: after each read it sleeps as long as its bytes still take.

    The latency of a read stays what it is. Multiplying it too, as the lanes' own dilation does, would
    give a disk that takes 16 ms to begin a read: neither board of the paper has one. `slower` slows
    whole reads on top, latency included.
    """

    def __init__(self, store: Store, by_bandwidth: float, bandwidth_Bps: float) -> None:
        self._store = store
        self._s_per_byte = (by_bandwidth - 1) / bandwidth_Bps
        self.slower = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_extent(self, extent: Extent, buffer: np.ndarray, at: int = 0) -> tuple[int, ...]:
        start_s = time.perf_counter()
        starts = self._store.read_extent(extent, buffer, at)
        took_s = time.perf_counter() - start_s
        sleep_s = self._s_per_byte * extent.n_bytes
        time.sleep(sleep_s + (self.slower - 1) * (took_s + sleep_s))
        return starts


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Real-time priority for this thread and those it starts, where the system grants it: on a shared
    machine every other job's slice would be multiplied by the dilation."""
    if not hasattr(os, "sched_setscheduler"):
        yield False
        return
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _slow(store: SlowedStore) -> None:
    store.slower = 3.0


def _waits(reply: Reply) -> tuple[float, float, float]:
    """Shares of the run that compute waited before its first layer, and after; IO per compute second."""
    steps = [step for segment in reply.program.segments for step in segment.steps]
    cpu = [s for s in reply.spans if isinstance(steps[s.step].work, Compute)]
    io_s = sum(s.seconds for s in reply.spans if isinstance(steps[s.step].work, Load))
    gaps = [max(0.0, b.start_s - a.end_s) for a, b in pairwise(cpu)]
    compute_s = sum(s.seconds for s in cpu[1:-1])
    return gaps[0] / reply.seconds, sum(gaps[1:]) / reply.seconds, io_s / max(compute_s, 1e-9)
