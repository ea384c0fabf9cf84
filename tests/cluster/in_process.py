"""All devices of a partition in this process, one thread each: for tests and checks. Uses no network."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from pliant.cluster.member.shard import ModelShards, Shard
from pliant.cluster.net.comm import Comm, Tag, Traffic
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.errors import LaneError, PeerLostError
from pliant.ir.cost import Span
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition
from pliant.ir.program import Exchange, Program
from pliant.ir.projection import project
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.plan.split.split_program import split
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.execute import StepFunctions, execute
from pliant.run.lanes import Lanes

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class LocalRun:
    """One run: the head's answers; each device's spans, in the order of its steps; its payload by peer."""

    answers: tuple[np.ndarray, ...]
    spans: Mapping[str, tuple[Span, ...]]
    traffic: Mapping[str, Mapping[str, Traffic]]


def run_local(
    source: EncoderSource,
    partition: Partition,
    inputs: Sequence[PreparedInput],
    library: Library,
    *,
    dilation: Mapping[str, float] | None = None,
) -> LocalRun:
    """Run the model on every device of `partition`; each has one thread for its kernels.

    A device in `dilation` computes that many times slower. Raises LaneError, chained to the first failure
    of any device, and InputError where the partition or the inputs do not fit the model.
    """
    program = split(source.spec, partition)
    network = MemoryNetwork()
    pools = {device: ThreadPool(1, library) for device in partition.devices}
    comms: dict[str, Comm] = {}
    try:
        shards = {d: ModelShards(d, source, library, pools[d]).prepare(partition) for d in partition.devices}
        comms |= {device: network.join(device) for device in partition.devices}
        shards[partition.primary].begin(inputs)
        slower = dilation or {}
        lengths = tuple(one.rows for one in inputs)
        with ThreadPoolExecutor(len(comms)) as threads:
            running = {
                d: threads.submit(_run, program, shards[d], comms[d], slower.get(d, 1.0), lengths)
                for d in comms
            }
        failures = [error for error in (run.exception() for run in running.values()) if error is not None]
        if failures:
            # The first is what stopped the others, whose errors say only that a peer left.
            raise next((e for e in failures if not _is_echo(e)), failures[0])
        traffic = {device: dict(comm.counters) for device, comm in comms.items()}
        spans = {device: run.result() for device, run in running.items()}
        return LocalRun(shards[partition.primary].answers(), spans, traffic)
    finally:
        for comm in comms.values():
            comm.close()
        for pool in pools.values():
            pool.close()


def _run(
    program: Program, shard: Shard, comm: Comm, dilation: float, lengths: tuple[int, ...]
) -> tuple[Span, ...]:
    own = f"{shard.device}/cpu"
    parts = [project(segment, shard.device) for segment in program.segments]
    tags = [Tag(0, number, i) for number, part in enumerate(parts) for i in part.numbers]
    mine = replace(program, segments=tuple(part.segment for part in parts))
    functions = StepFunctions(
        lambda step, work: shard.compute(step, work, lengths), exchange=_exchange(tags, shard, comm)
    )
    try:
        with Lanes((), own=own, emulated=EmulatedDevice(Dilation(dilation)), is_single=True) as lanes:
            return execute(mine, functions, lanes)
    except LaneError:
        comm.close()  # wakes the others
        raise


def _exchange(tags: Sequence[Tag], shard: Shard, comm: Comm) -> Callable[[int, Exchange], None]:
    """Sends and receives; a message's tag is its step's number in the whole segment, equal at both ends."""

    def exchange(step: int, work: Exchange) -> None:
        view = shard.view(work)
        if work.src == shard.device:
            comm.send(work.dst, tags[step], view)
            return
        into = view if view.flags.c_contiguous else np.empty(view.shape, view.dtype)
        comm.receive(work.src, tags[step], into, PATIENCE_S)
        if into is not view:
            view[...] = into

    return exchange


def _is_echo(error: BaseException) -> bool:
    return isinstance(error.__cause__, PeerLostError)
