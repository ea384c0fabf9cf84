"""Cold runs of plans on slowed devices: each system in a separate process, interleaved."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np

from pliant.ir.program import Compute, Load
from pliant.ir.reply import Reply
from pliant.plan.plan import BitGrid, Plan
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from sti_cell import Answer, Job, TextRequest
from sti_rig import Device, Rig

N_WARM = 2
"""Warm-up runs of each system."""

SlowAfter = Callable[[str, int], float | None]


@dataclass(frozen=True, slots=True)
class Runs:
    """Cold runs of one plan, as measured; waits of the compute lane as shares of a run.

    `read_bytes` is the median of a run, `weight_bytes` the preload and working buffers, `peak_bytes` the
    process's peak resident set above its own with all modules imported. `grids` are the bits of each run.
    """

    target_s: float
    seconds: np.ndarray
    predicted_s: float
    first_wait: float
    later_wait: float
    io_per_compute: float
    grids: tuple[BitGrid, ...]
    is_as_planned: float
    read_bytes: int
    weight_bytes: int
    peak_bytes: int

    @property
    def n_met(self) -> int:
        return int(np.sum(self.seconds <= self.target_s))

    @property
    def met(self) -> str:
        return f"{self.n_met} of {len(self.seconds)}"

    @property
    def spread(self) -> str:
        """Median and the central 90 % of seconds, in ms."""
        low, median, high = 1e3 * np.quantile(self.seconds, (0.05, 0.5, 0.95))
        return f"{median:.1f} [{low:.1f}, {high:.1f}]"


def cold_runs(
    rig: Rig,
    device: Device,
    plans: Mapping[str, Plan],
    texts: Sequence[str],
    slow_after: SlowAfter = lambda name, i: None,
) -> dict[str, Runs]:
    """Run each plan once per text, with direct reads, interleaving plans text by text.

    `slow_after(name, i)` seconds into run i of a plan, if given, reads slow down. Plans with equal runs are
    measured once.
    """
    runs = {name: _what_runs(p) for name, p in plans.items()}
    first = {key: name for name, key in reversed(runs.items())}
    kept = {name: plans[name] for name in plans if first[runs[name]] == name}
    answers = answers_of(rig, device, kept, texts, slow_after)
    found = {name: _summed_up(plans[name], some) for name, some in answers.items()}
    return {name: found[first[key]] for name, key in runs.items()}


def answers_of(
    rig: Rig,
    device: Device,
    plans: Mapping[str, Plan],
    texts: Sequence[str],
    slow_after: SlowAfter = lambda name, i: None,
) -> dict[str, list[Answer]]:
    """The answers of each plan, in the order of `texts`."""
    answers: dict[str, list[Answer]] = {name: [] for name in plans}
    with ExitStack() as stack:
        cells = {name: stack.enter_context(_Cell(rig, device, p)) for name, p in plans.items()}
        for cell in cells.values():
            for text in texts[:N_WARM]:
                cell.answer(TextRequest(text))
        for i, text in enumerate(texts):
            for name in list(cells) if i % 2 == 0 else list(cells)[::-1]:
                answers[name].append(cells[name].answer(TextRequest(text, slow_after(name, i))))
    return answers


class _Cell:
    """A process that runs one plan; a context manager."""

    def __init__(self, rig: Rig, device: Device, plan: Plan) -> None:
        options = SessionOptions(
            target_s=plan.budget.target_s, preload_bytes=plan.budget.preload_bytes, length=rig.length,
            n_threads=rig.n_threads, is_anytime=plan.is_anytime, best_effort=True,
        )  # fmt: skip
        self._job = Job(rig.store.path, rig.cache, device.profile, options, plan)

    def __enter__(self) -> "_Cell":
        command = [sys.executable, str(Path(__file__).with_name("sti_cell.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._send(self._job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def answer(self, ask: TextRequest) -> Answer:
        self._send(ask)
        assert self._process.stdout is not None
        found: Answer = pickle.load(self._process.stdout)
        return found

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()


def _what_runs(p: Plan) -> tuple[object, ...]:
    """The properties of a plan that determine its runs."""
    return (
        p.layers, p.width, p.bits, p.held, p.loads, p.latest_start_s, p.latest_refinement_s,
        p.is_anytime, p.is_pipelined, p.window, p.budget,
    )  # fmt: skip


def _summed_up(plan: Plan, answers: Sequence[Answer]) -> Runs:
    replies = [a.reply for a in answers]
    ran = [r.details for r in replies]
    waits = np.array([_waits(r) for r in replies])
    return Runs(
        target_s=plan.budget.target_s,
        seconds=np.array([r.seconds for r in replies]),
        predicted_s=float(np.median([r.predicted_s for r in ran])),
        first_wait=float(np.median(waits[:, 0])),
        later_wait=float(np.median(waits[:, 1])),
        io_per_compute=float(np.median(waits[:, 2])),
        grids=tuple(r.bits for r in ran),
        is_as_planned=float(np.mean([r.bits == r.planned_bits for r in ran])),
        read_bytes=int(np.median([r.read_bytes for r in ran])),
        weight_bytes=max(r.resident_weight_bytes for r in ran),
        peak_bytes=max(a.peak_bytes for a in answers),
    )


def _waits(reply: Reply[ElasticDetails]) -> tuple[float, float, float]:
    """The shares of the run in which compute waited before its first layer, and later; IO per compute
    second.
    """
    steps, spans = reply.details.program.steps, reply.details.spans
    cpu = [s for s in spans if isinstance(steps[s.step].work, Compute)]
    io_s = sum(s.seconds for s in spans if isinstance(steps[s.step].work, Load))
    gaps = [max(0.0, b.start_s - a.end_s) for a, b in pairwise(cpu)]
    compute_s = sum(s.seconds for s in cpu[1:-1])
    return gaps[0] / reply.seconds, sum(gaps[1:]) / reply.seconds, io_s / max(compute_s, 1e-9)
