"""Energy of an answer on this device and on the other devices of its cluster."""

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
from pliant.profile.energy_meter import EnergyMeter
from pliant.route.choice.energy import DeviceWork, PowerModel, cluster_joules


@runtime_checkable
class ClusterRun(Protocol):
    """Details of a cluster's answer: the steps of all devices, and their times."""

    partitions: tuple[Partition, ...]
    program: Program
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AnswerEnergy:
    """Energy accounting of local answers: by `meters` if the device has any, else by `power`.

    `workers` are the power models of other cluster devices by name; unnamed devices run on mains power and do
    not count. Meters measure everything that the device does, so cluster answers are counted by power models
    alone.
    """

    power: PowerModel | None = None
    meters: tuple[EnergyMeter, ...] = ()
    workers: Mapping[str, PowerModel] = field(default_factory=dict)

    @property
    def is_counted(self) -> bool:
        """Whether energy is counted."""
        return self.power is not None or bool(self.workers)

    def measure(self, answer: Callable[[], Reply[Any]]) -> Reply[Any]:
        """Run `answer` and add its joules above idle (eq. 8), None if unknown."""
        if not self.is_counted:
            return answer()
        before_uj, start_s = self._read(), perf_counter()
        reply = answer()
        seconds, after_uj = perf_counter() - start_s, self._read()
        if isinstance(reply.details, ClusterRun):
            return replace(reply, energy_j=cluster_joules(self.device_work(reply.details)))
        if self.power is None:
            return reply
        joules = self.power.compute_W * seconds
        if before_uj and after_uj:
            spent = zip(self.meters, before_uj, after_uj, strict=True)
            joules = sum(meter.joules(a, b) for meter, a, b in spent) - self.power.idle_W * seconds
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

    def most_W(self) -> float:  # noqa: N802 - watts
        """Power of a cluster while all of its devices compute."""
        own_W = 0.0 if self.power is None else self.power.compute_W
        return own_W + sum(power.compute_W for power in self.workers.values())

    def device_work(self, run: ClusterRun) -> list[DeviceWork]:
        """The work of each device in a run: seconds of computing, bytes sent and received."""
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
        """The meter readings; empty if one is unreadable."""
        with suppress(OSError, ValueError):
            return [meter.read_uj() for meter in self.meters]
        return []
