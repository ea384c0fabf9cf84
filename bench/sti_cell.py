"""One system of bench/sti.py in a fresh process: cold runs on a slowed device, and their memory.

Reads a pickled Job, then Asks, from standard input; answers each Ask with a pickled Answer. `sti_runs.py`
starts one process per system, so that peak memory is that of this system alone.
"""

import os
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.reply import Reply
from pliant.plan.plan import Plan
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.run.submodel.submodel_runner import SubmodelRunner
from pliant.store.read import open_store
from pliant.system import peak_rss_bytes

SLOW_IO = 3.0


@dataclass(frozen=True, slots=True)
class Job:
    """A plan to run on the store at `store`, on the device that `profile` dilates this machine to."""

    store: Path
    cache: Path
    profile: DeviceProfile
    options: SessionOptions
    plan: Plan


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text; after `slow_after_s`, if given, reads take `SLOW_IO` times as long, including their
    latency.
    """

    text: str
    slow_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the process's peak resident set above its size after all imports."""

    reply: Reply
    peak_bytes: int


def main() -> None:
    """Answer until standard input is closed."""
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    job: Job = pickle.load(asks)
    idle_bytes = peak_rss_bytes()
    with (
        undisturbed(),
        open_store(job.store) as store,
        ElasticSession(store, job.profile, job.options, cache=job.cache, fixed=job.plan) as session,
    ):
        while True:
            try:
                ask: TextRequest = pickle.load(asks)
            except EOFError:
                return
            reply = _run(session, ask)
            pickle.dump(Answer(reply, peak_rss_bytes() - idle_bytes), answers)
            answers.flush()


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Real-time priority for this thread and those it starts, if the system grants it: another job's time
    slice would be multiplied by the dilation of reads.
    """
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


def _run(session: ElasticSession, ask: TextRequest) -> Reply[ElasticDetails]:
    timer = None
    if ask.slow_after_s is not None:
        timer = threading.Timer(ask.slow_after_s, _slow_reads, (session.runner,))
        timer.start()
    reply = session(ask.text)
    if timer is not None:
        timer.cancel()
        timer.join()
    session.runner.lanes.drain()  # a cold run begins with an idle disk
    session.runner.dilation = session.device.dilation
    return reply


def _slow_reads(runner: SubmodelRunner) -> None:
    """Slow down reads from now on, including those of the current run."""
    for slowed in (runner, runner.lanes.emulated):
        slowed.dilation = slowed.dilation.times(Dilation(io=SLOW_IO))


if __name__ == "__main__":
    import sti_cell  # under the module name that the process reading its pickles uses

    sti_cell.main()
