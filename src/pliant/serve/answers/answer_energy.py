"""Energy of an answer on this device and on the other devices of its cluster."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from pliant.ir.cost import Span, SpanState
from pliant.ir.curve import MAX_SECONDS, Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Exchange, Program, value
from pliant.ir.reply import Reply
from pliant.route.choice.energy import DeviceWork, PowerModel, cluster_joules
from pliant.route.choice.radio_use import RadioTail
from pliant.system import EnergyMeter


@runtime_checkable
class ClusterRun(Protocol):
    """Details of a cluster's answer: the steps of all devices, and their times."""

    partitions: tuple[Partition, ...]
    program: Program
    spans: tuple[Span, ...]


class PlannedRun(Protocol):
    """A plan of a cluster for one length."""

    @property
    def partition(self) -> Partition: ...

    @property
    def program(self) -> Program: ...


PlannedRuns = Sequence[Mapping[int, PlannedRun]]
"""The plans of each level of a cluster, worst first, by input length."""


class PlannedLevels(Protocol):
    """The levels of a cluster's session; another object when it has planned again."""

    @property
    def planned(self) -> PlannedRuns: ...


@runtime_checkable
class PlannedSession(Protocol):
    """A cluster's session."""

    @property
    def planned_levels(self) -> PlannedLevels: ...


@dataclass(frozen=True, slots=True)
class PlannedExchanges:
    """Joules of the bytes exchanged by `planned`, by input length for each level, and the radios used."""

    planned: PlannedRuns = ()
    curves: tuple[Curve, ...] = ()
    radios: tuple[RadioTail, ...] = ()

    def add_to(self, levels: tuple[ServiceLevel, ...]) -> tuple[ServiceLevel, ...]:
        """The levels with these joules; as they are if the cluster plans again at this moment."""
        if len(levels) != len(self.curves):
            return levels
        found = zip(levels, self.curves, strict=True)
        return tuple(replace(level, exchange_j=curve) for level, curve in found)

    def tail_j(self, now_s: float) -> float:
        """The joules of waking and tails that a run would add if it began now."""
        return sum(radio.joules(now_s) for radio in self.radios)


@dataclass(frozen=True, slots=True)
class AnswerEnergy:
    """Energy accounting of local answers: by `meters` if the device has any, else by `power`.

    `workers` are the power models of other cluster devices by name; unnamed devices run on mains power and do
    not count. `radio` is the one by which this device exchanges activations with its cluster's workers,
    `worker_radios` are theirs; other devices are connected by cable. Meters measure everything that the
    device does, so cluster answers are counted by power models alone.
    """

    power: PowerModel | None = None
    meters: tuple[EnergyMeter, ...] = ()
    workers: Mapping[str, PowerModel] = field(default_factory=dict)
    radio: RadioTail | None = None
    worker_radios: Mapping[str, RadioTail] = field(default_factory=dict)
    clock: Callable[[], float] = field(default=monotonic, repr=False)

    @property
    def is_counted(self) -> bool:
        """Whether energy is counted."""
        return self.power is not None or bool(self.workers) or self.has_radios

    @property
    def has_radios(self) -> bool:
        """Whether any device of the cluster has a known radio."""
        return self.radio is not None or bool(self.worker_radios)

    def measure(self, answer: Callable[[], Reply[Any]]) -> Reply[Any]:
        """Run `answer` and add its joules above idle (eq. 8 and 9), None if unknown."""
        if not self.is_counted:
            return answer()
        before_uj, start_s = self._read(), self.clock()
        reply = answer()
        end_s, after_uj = self.clock(), self._read()
        if isinstance(run := reply.details, ClusterRun):
            joules = cluster_joules(self.device_work(run)) + self._add_tails(run, end_s)
            return replace(reply, energy_j=joules)
        if self.power is None:
            return reply
        joules = self.power.compute_W * (end_s - start_s)
        if before_uj and after_uj:
            spent = zip(self.meters, before_uj, after_uj, strict=True)
            joules = sum(meter.joules(a, b) for meter, a, b in spent) - self.power.idle_W * (end_s - start_s)
        return replace(reply, energy_j=max(joules, 0.0))

    def measure_batch(self, answers: Callable[[], list[Reply[Any]]]) -> list[Reply[Any]]:
        """Like `measure` for a batch: each reply gets a part of the joules in proportion to its length."""
        replies: list[Reply[Any]] = []

        def first() -> Reply[Any]:
            replies.extend(answers())
            return replies[0]

        joules = self.measure(first).energy_j
        if joules is None:
            return replies
        n_items = sum(max(reply.length, 1) for reply in replies)
        return [replace(reply, energy_j=joules * max(reply.length, 1) / n_items) for reply in replies]

    def timed_j(self, reply: Reply[Any]) -> float | None:
        """The part of a measured reply's joules that is in proportion to its time: not of bytes and tails."""
        if not self.has_radios or not isinstance(reply.details, ClusterRun):
            return reply.energy_j
        return sum(work.timed_j for work in self.device_work(reply.details))

    def most_W(self) -> float:  # noqa: N802 - watts
        """Power of a cluster while all of its devices compute, with their radios on."""
        powers = [*self.workers.values(), *([] if self.power is None else [self.power])]
        radios = [*self.worker_radios.values(), *([] if self.radio is None else [self.radio])]
        return sum(one.compute_W for one in powers) + sum(one.model.waiting_W for one in radios)

    def plan_exchanges(self, planned: PlannedRuns) -> "PlannedExchanges":
        """The joules of the bytes that the devices exchange by these plans (E_tx0 of eq. 9)."""
        if not self.has_radios:
            return PlannedExchanges(planned)
        runs = [run for plans in planned for run in plans.values()]
        used = [self._radio_of(name, run.partition.primary) for run in runs for name in _traffic(run.program)]
        curves = tuple(self._exchange_j(plans) for plans in planned)
        radios = {id(radio): radio for radio in used if radio is not None}
        return PlannedExchanges(planned, curves, tuple(radios.values()))

    def device_work(self, run: ClusterRun) -> list[DeviceWork]:
        """The work of each device in a run: seconds of computing, bytes sent and received."""
        primary, traffic, away = run.partitions[-1].primary, _traffic(run.program), _away(run)
        busy_s: dict[str, float] = defaultdict(float)
        for step, span in zip(run.program.steps, run.spans, strict=True):
            if isinstance(step.work, Compute):
                busy_s[step.work.device] += span.seconds
        found = []
        for device in sorted({*busy_s, *traffic}):
            power = self.workers.get(device, self.power if device == primary else None)
            began_s, ended_s = away.get(device, (0.0, 0.0))
            sent, received = traffic.get(device, (0, 0))
            model = None if (radio := self._radio_of(device, primary)) is None else radio.model
            found.append(DeviceWork(busy_s[device], power, sent, received, model, ended_s - began_s))
        return found

    def _add_tails(self, run: ClusterRun, end_s: float) -> float:
        """Record the exchanges of a run that ended at `end_s`; return what they add to the radios' tails."""
        if not self.has_radios:
            return 0.0
        start_s, joules = end_s - max((span.end_s for span in run.spans), default=0.0), 0.0
        for device, (began_s, ended_s) in _away(run).items():
            if (radio := self._radio_of(device, run.partitions[-1].primary)) is not None:
                joules += radio.add(start_s + began_s, start_s + ended_s)
        return joules

    def _exchange_j(self, plans: Mapping[int, PlannedRun]) -> Curve:
        points = [(0, 0.0)]  # bytes grow with rows
        for n, run in sorted(plans.items()):
            joules = 0.0
            for device, (sent, received) in _traffic(run.program).items():
                if (radio := self._radio_of(device, run.partition.primary)) is not None:
                    joules += radio.model.transfer_j(sent, received)
            points.append((n, min(joules, MAX_SECONDS)))
        return Curve(tuple(points))

    def _radio_of(self, device: str, primary: str) -> RadioTail | None:
        return self.worker_radios.get(device, self.radio if device == primary else None)

    def _read(self) -> Sequence[int]:
        """The meter readings; empty if one is unreadable."""
        with suppress(OSError, ValueError):
            return [meter.read_uj() for meter in self.meters]
        return []


def _traffic(program: Program) -> dict[str, tuple[int, int]]:
    """Return the bytes that each device sends and receives."""
    sent, received = Counter[str](), Counter[str]()
    for step in program.steps:
        if isinstance(step.work, Exchange):
            n_bytes = value(step.work.n_bytes, {})
            sent[step.work.src] += n_bytes
            received[step.work.dst] += n_bytes
    return {device: (sent[device], received[device]) for device in {*sent, *received}}


def _away(run: ClusterRun) -> dict[str, tuple[float, float]]:
    """Return the begin of each device's first exchange and the end of its last one, in seconds of the run."""
    found: dict[str, tuple[float, float]] = {}
    for step, span in zip(run.program.steps, run.spans, strict=True):
        if isinstance(step.work, Exchange) and span.state is SpanState.RAN:
            for device in (step.work.src, step.work.dst):
                began_s, ended_s = found.get(device, (span.start_s, span.end_s))
                found[device] = min(began_s, span.start_s), max(ended_s, span.end_s)
    return found
