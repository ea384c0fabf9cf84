"""The parts of a layer's time (compute, exchange): predicted, measured, and the lower bound."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean, median
from threading import Barrier

from hepti_rig import cores_of, on_core
from pliant.cluster.member.shard import ModelShards, Shard
from pliant.ir.capability import Links
from pliant.ir.cost import Span
from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Program, Step
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import layer_segment, traffic
from pliant.run.emulated_device import EmulatedDevice
from pliant.settings import cache_folder


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Seconds of a mean layer: the total, and the compute time of the slowest device.

    `opening` is the time to distribute the input, `layers` the time from then to the last layer's end.
    """

    layer: float
    compute: float
    opening: float
    layers: float

    @property
    def rest(self) -> float:
        """The time besides the slowest device's compute: messages, and waiting for others."""
        return self.layer - self.compute


def anatomy(program: Program, spans: Sequence[Span]) -> Anatomy:
    """The anatomy of a whole run: [input, its broadcast], one segment per layer, [head]."""
    at, ends, busy = 0, [], []
    for segment in program.segments:
        own = spans[at : at + len(segment.steps)]
        at += len(segment.steps)
        ends.append(max((s.end_s for s in own), default=ends[-1] if ends else 0.0))
        devices: dict[str, float] = {}
        for step, span in zip(segment.steps, own, strict=True):
            if isinstance(step.work, Compute):
                devices[step.work.device] = devices.get(step.work.device, 0.0) + span.seconds
        busy.append(devices)
    n_layers = len(program.segments) - 2
    made = next(s.end_s for s in spans)  # the input stage comes first
    names = {name for devices in busy[1:-1] for name in devices}
    compute = max(mean(devices.get(name, 0.0) for devices in busy[1:-1]) for name in names)
    layers = ends[-2] - ends[0]
    return Anatomy(layers / n_layers, compute, ends[0] - made, layers)


def middle(found: Sequence[Anatomy]) -> Anatomy:
    """The median of each part over runs."""
    return Anatomy(*(median(getattr(one, name) for one in found) for name in Anatomy.__slots__))


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of a mean layer's seconds for any order of its steps, with the steps' times alone.

    `compute` is the slowest device's, `exchange` the time of every point's bytes at the link's bandwidth, in
    the busier direction.
    """

    compute: float
    exchange: float

    @property
    def layer(self) -> float:
        return self.compute + self.exchange


def bound(compute: Mapping[str, float], spec: EncoderSpec, partition: Partition, links: Links) -> Bound:
    """`compute` are the devices' seconds per layer, alone and dilated.

    A primary without a share receives a layer's output while the others compute the next one.
    """
    compute_s = max(compute.values())
    exchanges = [_exchange_s(layer_segment(spec, partition, k).steps, links) for k in range(spec.n_layers)]
    if partition.primary not in partition.participants:
        exchanges[:-1] = [max(exchange_s - compute_s, 0.0) for exchange_s in exchanges[:-1]]
    return Bound(compute_s, mean(exchanges))


def computes_alone(
    source: EncoderSource, partition: Partition, slower: Mapping[str, float], rounds: int
) -> dict[str, float]:
    """Seconds per layer of each device's stages, one device after the other on an idle machine.

    Median of rounds over all layers, weights from memory as in a run; a dilated device rests in between.
    """
    with _stages(source, partition, slower) as devices:
        return {
            name: median([stages.run() for _ in range(rounds + 1)][1:]) for name, stages in devices.items()
        }


def computes_together(
    source: EncoderSource, partition: Partition, slower: Mapping[str, float], rounds: int
) -> dict[str, float]:
    """As `computes_alone`, with all devices starting each layer at the same time: shows the cost of sharing
    the machine's memory.
    """
    with _stages(source, partition, slower) as devices, ThreadPoolExecutor(len(devices)) as threads:
        meet = Barrier(len(devices))
        found: dict[str, list[float]] = {name: [] for name in devices}
        for _ in range(rounds + 1):
            running = {
                name: threads.submit(stages.run_on, core, meet)
                for (name, stages), core in zip(devices.items(), cores_of(len(devices)), strict=True)
            }
            for name, run in running.items():
                found[name].append(run.result())
        return {name: median(seconds[1:]) for name, seconds in found.items()}


@dataclass(slots=True)
class _Stages:
    """One device's stages of all layers."""

    shard: Shard
    layers: list[list[Compute]]
    slower: float

    def run_on(self, core: int | None, meet: Barrier) -> float:
        """As `run`, on one core of this machine, as in a cluster run."""
        with on_core(core):
            return self.run(meet)

    def run(self, meet: Barrier | None = None) -> float:
        """Seconds of a mean layer."""
        took_s, emulated = 0.0, EmulatedDevice()
        for layer in self.layers:
            if meet is not None:
                meet.wait()
            for work in layer:
                start_s = time.perf_counter()
                self.shard.compute(0, work)
                took_s += time.perf_counter() - start_s
                emulated.rest_since(start_s, self.slower)
        return took_s * self.slower / len(self.layers)


@contextmanager
def _stages(
    source: EncoderSource, partition: Partition, slower: Mapping[str, float]
) -> Iterator[dict[str, _Stages]]:
    library = Library(host_isa(), cache_folder())
    with ExitStack() as ends:
        devices = {}
        for name in partition.participants:
            pool = ends.enter_context(ThreadPool(1, library))
            layers: list[list[Compute]] = []
            for layer in range(source.spec.n_layers):
                works = [step.work for step in layer_segment(source.spec, partition, layer).steps]
                layers.append([w for w in works if isinstance(w, Compute) and w.device == name])
            shard = ModelShards(name, source, library, pool).prepare(partition)
            devices[name] = _Stages(shard, layers, slower[name])
        yield devices


def _exchange_s(steps: Sequence[Step], links: Links) -> float:
    """With two devices each sender is a direction; a point's two directions run concurrently."""
    points: dict[str, float] = {}
    for (src, point), n_bytes in traffic(steps).items():
        dst = next(name for name in links.interfaces if name != src)
        points[point] = max(points.get(point, 0.0), n_bytes / links.link(src, dst).bandwidth_Bps)
    return sum(points.values())
