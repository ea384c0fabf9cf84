"""The joules that an answer takes of this device, and of the other devices of its cluster."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from pliant.ir.cost import Span
from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Exchange, Program, value
from pliant.ir.reply import Reply
from pliant.profile.energy_meter import Meter
from pliant.route.choice.energy import DeviceWork, PowerModel, cluster_joules


@runtime_checkable
class ClusterRun(Protocol):
    """Details of an answer that several devices gave: the steps of all of them, and when each ran."""

    partitions: tuple[Partition, ...]
    program: Program
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AnswerEnergy:
    """How joules of answers made here are counted: by `meters` where the device has some, else by `power`.

    `workers` are the powers of other devices of its cluster by name; those that are not named run off the
    mains. Counters see all that the device does meanwhile, so an answer of the cluster goes by powers alone.
    """

    power: PowerModel | None = None
    meters: tuple[Meter, ...] = ()
    workers: Mapping[str, PowerModel] = field(default_factory=dict)

    @property
    def is_counted(self) -> bool:
        """Whether answers tell joules."""
        return self.power is not None or bool(self.workers)

    def counted(self, answer: Callable[[], Reply[Any]]) -> Reply[Any]:
        """The reply of `answer`, with the joules that it took over idling (eq. 8), None where unknown."""
        if not self.is_counted:
            return answer()
        before_uj, start_s = self._read(), perf_counter()
        reply = answer()
        seconds, after_uj = perf_counter() - start_s, self._read()
        if isinstance(reply.details, ClusterRun):
            return replace(reply, energy_j=cluster_joules(self.works_of(reply.details)))
        if self.power is None:
            return reply
        joules = self.power.compute_W * seconds
        if before_uj and after_uj:
            spent = zip(self.meters, before_uj, after_uj, strict=True)
            joules = sum(meter.joules(a, b) for meter, a, b in spent) - self.power.idle_W * seconds
        return replace(reply, energy_j=max(joules, 0.0))

    def counted_together(self, answers: Callable[[], list[Reply[Any]]]) -> list[Reply[Any]]:
        """As `counted`, for replies that come at once: each has its part of the joules, by its length."""
        replies: list[Reply[Any]] = []

        def first() -> Reply[Any]:
            replies.extend(answers())
            return replies[0]

        joules = self.counted(first).energy_j
        if joules is None:
            return replies
        n_items = sum(max(reply.length, 1) for reply in replies)
        return [replace(reply, energy_j=joules * max(reply.length, 1) / n_items) for reply in replies]

    def most_W(self) -> float:  # noqa: N802 - watts
        """What a cluster draws while all of its devices compute."""
        own_W = 0.0 if self.power is None else self.power.compute_W
        return own_W + sum(power.compute_W for power in self.workers.values())

    def works_of(self, run: ClusterRun) -> list[DeviceWork]:
        """What each device of a run did: seconds of computing, bytes sent and received."""
        primary = run.partitions[-1].primary
        busy_s: dict[str, float] = defaultdict(float)
        sent, received = Counter[str](), Counter[str]()
        for step, span in zip(run.program.steps, run.spans, strict=True):
            if isinstance(step.work, Compute):
                busy_s[step.work.device] += span.seconds
            elif isinstance(step.work, Exchange):
                sent[step.work.src] += value(step.work.n_bytes, {})
                received[step.work.dst] += value(step.work.n_bytes, {})
        return [
            DeviceWork(
                busy_s[device],
                self.workers.get(device, self.power if device == primary else None),
                sent[device],
                received[device],
            )
            for device in sorted({*busy_s, *sent, *received})
        ]

    def _read(self) -> Sequence[int]:
        """The counters; none where one cannot be read any more."""
        with suppress(OSError, ValueError):
            return [meter.read_uj() for meter in self.meters]
        return []
