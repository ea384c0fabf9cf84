"""A primary's log of its runs, for status requests. Thread-safe."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import final

from pliant.cluster.lead.status_report import N_FAULTS, FaultStatus, PlanStatus
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.watch.fault_attribution import Verdict


@dataclass(frozen=True, slots=True)
class Fault:
    """A repeated segment: the excluded members, and the times to detect the fault and to get a new plan."""

    segment: int
    verdicts: tuple[Verdict, ...]
    noticed_s: float
    planned_s: float


@final
class RunLog:
    """Counts of runs, the plan of the current or last run, and the last faults."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, Lock()
        self._faults: deque[tuple[float, Fault]] = deque(maxlen=N_FAULTS)
        self.plan: PlanStatus | None = None
        self.is_running = False
        self.n_runs = self.n_failed = 0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Record one run, from its start to its answer or error. Runs do not overlap."""
        self.is_running = True
        try:
            yield
        except BaseException:
            self.n_failed += 1
            raise
        else:
            self.n_runs += 1
        finally:
            self.is_running = False

    def follow(self, held: ReadyPlan) -> None:
        """Record the plan that the run follows from now on."""
        self.plan = PlanStatus(held.source.identity, held.partition)

    def add(self, fault: Fault) -> None:
        """Record a segment that was just repeated."""
        with self._lock:
            self._faults.append((self._clock(), fault))

    def faults(self) -> tuple[FaultStatus, ...]:
        """Return the last faults, most recent last."""
        with self._lock:
            known, now_s = tuple(self._faults), self._clock()
        return tuple(
            FaultStatus(
                ago_s=now_s - when_s,
                segment=fault.segment,
                members=tuple(v.member for v in fault.verdicts),
                reasons=tuple(v.reason for v in fault.verdicts),
                noticed_s=fault.noticed_s,
                planned_s=fault.planned_s,
            )
            for when_s, fault in known
        )
