"""Assemble a member: threads, kernels, connections and the state machines that use them.

Does not read the environment: keys, addresses and folders are arguments.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from pliant.cluster.control.messages import AnyMessage, Note
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.adaptive_planner import AdaptivePlanner
from pliant.cluster.lead.choose_partition import PartitionChooser
from pliant.cluster.lead.lead_run import RunLeader
from pliant.cluster.lead.primary import Primary
from pliant.cluster.member.local_stage_builder import LocalStageBuilder
from pliant.cluster.member.run_executor import RunExecutor
from pliant.cluster.member.worker import ClusterWorker, OnEvent, WorkerOffer
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.comm import Comm
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.connect_members import (
    AddressConnector,
    GroupConnector,
    MemberConnector,
    Transport,
    find_interface,
)
from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import find_local_address, host_and_port
from pliant.errors import ClusterError
from pliant.ir.dilation import Dilation
from pliant.kernels.emit.isa import vector_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.lanes import Lanes

_LOG = logging.getLogger("pliant.cluster")


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The options of any member. `free_bytes` returns the memory available to its model.

    `dilation` slows its computation by a factor: an emulated device, whose pace may change. `engine` is its
    data transport, the same on all members; with ZeroMQ, data is received at the first free port of
    `data_ports`, where 0 lets the system choose one.
    """

    name: str
    key: Key
    version: str
    cache: Path
    n_threads: int
    free_bytes: Callable[[], int] | None = None
    dilation: Dilation | Callable[[], Dilation] = Dilation()  # noqa: RUF009 - frozen
    engine: Transport = "zmq"
    data_ports: Sequence[int] = (0,)
    patience: ClusterTimeouts = ClusterTimeouts()  # noqa: RUF009 - frozen
    on_event: OnEvent = lambda text: None

    def report(self, text: str) -> None:
        """Pass an event to `on_event`. Its errors are logged: they would end a thread that others need."""
        try:
            self.on_event(text)
        except Exception:  # noqa: BLE001 - for example, nobody reads its output any more
            _LOG.exception("this event could not be told: %s", text)


@dataclass(slots=True)
class _MemberRuntime:
    """The parts of every member that exist before its connections."""

    builder: LocalStageBuilder
    lanes: Lanes


@contextmanager
def _open_runtime(options: MemberOptions) -> Iterator[_MemberRuntime]:
    library = Library(vector_isa(), options.cache)  # plans count rows of float32 for every device
    with (
        ThreadPool(options.n_threads, library) as pool,
        member_lanes(options.name, options.dilation, options.n_threads) as lanes,
    ):
        builder = LocalStageBuilder(options.name, library, pool, lanes.emulated, options.free_bytes)
        yield _MemberRuntime(builder, lanes)


def member_lanes(name: str, dilation: Dilation | Callable[[], Dilation], n_threads: int) -> Lanes:
    """Return the single thread of a member, which runs its stages and its messages between them.

    An emulated device rests in proportion to its computation, not to other activity of this machine: for one
    thread that is its CPU time. With several compute threads, it is the elapsed time.
    """
    emulated = EmulatedDevice(dilation, effort=time.thread_time if n_threads == 1 else None)
    return Lanes((), own=f"{name}/cpu", emulated=emulated, is_single=True)


@contextmanager
def _open_connections(options: MemberOptions, host: str) -> Iterator[tuple[Comm, MemberConnector]]:
    """Yield the data connections between this member, whose address is `host`, and the others."""
    match options.engine:
        case "zmq":
            with _open_zmq(options, host) as zmq:
                yield zmq, AddressConnector(zmq)
        case "gloo":
            if any(options.data_ports):
                raise ClusterError(
                    "gloo chooses its ports itself: leave out --data-port, or exchange by zmq."
                )
            with GlooComm(options.name, interface=find_interface(host)) as gloo:
                yield gloo, GroupConnector(gloo, host)
        case _:
            assert_never(options.engine)


def _open_zmq(options: MemberOptions, host: str) -> ZmqComm:
    *first, last = options.data_ports
    for port in first:
        with suppress(ClusterError):
            return ZmqComm(options.name, options.key, f"{host}:{port}")
    try:
        return ZmqComm(options.name, options.key, f"{host}:{last}")
    except ClusterError as error:
        if last == 0:  # the system chooses the port: the address is wrong
            raise
        ports = f"{first[0]}-{last}" if first else f"{last}"
        raise ClusterError(f"no port for tensors (--data-port {ports}): {error}") from error


@contextmanager
def open_worker(
    options: MemberOptions, join: Sequence[str], sources: Sequence[EncoderSource]
) -> Iterator[ClusterWorker]:
    """Yield a worker that connects to the addresses `join`; its data connections listen towards these.

    Raises ClusterError for an invalid address.
    """
    if not join:
        raise ClusterError("a worker needs an address to join: give the primary's, such as 10.77.0.1:29500.")
    host = find_local_address(join[0])
    later = _DeferredCallbacks()
    with (
        _open_runtime(options) as machine,
        _open_connections(options, host) as (comm, connector),
        Messenger(
            options.name,
            options.key,
            on_message=later.hear,
            on_silence=later.lose,
            silence_s=options.patience.silence_s,
        ) as messenger,
    ):
        offer = WorkerOffer(
            version=options.version,
            sources={source.identity: source for source in sources},
            free_bytes=machine.builder.free_bytes,
            n_threads=options.n_threads,
            engine=options.engine,
        )
        with ClusterWorker(
            options.name,
            messenger,
            comm,
            machine.lanes,
            offer,
            machine.builder,
            connector=connector,
            on_event=options.report,
        ) as worker:
            later.begin(worker.handle_message, worker.handle_lost_peer)
            for address in join:
                messenger.connect(address)
            yield worker


@dataclass(frozen=True, slots=True)
class PrimaryMember:
    """A primary with the objects that it uses to lead."""

    primary: Primary
    lead: RunLeader
    planner: AdaptivePlanner
    comm: Comm
    messenger: Messenger
    builder: LocalStageBuilder


@contextmanager
def open_primary(
    options: MemberOptions,
    listen: str,
    choose: PartitionChooser,
    *,
    coding: Coding = "fp32",
    is_adaptive: bool = True,
    is_measuring: bool = True,
) -> Iterator[PrimaryMember]:
    """Yield a primary that workers join at `listen`. Raises ClusterError if it cannot listen there.

    A primary that listens at all its addresses (0.0.0.0) tells each worker the one on the route to it.
    """
    later = _DeferredCallbacks()
    _, port = host_and_port(listen)
    if port and port in options.data_ports:
        raise ClusterError(f"workers join at port {port}: give tensors another with --data-port.")
    host = listen.rpartition(":")[0]
    with (
        _open_runtime(options) as machine,
        _open_connections(options, host) as (comm, connector),
        Messenger(
            options.name,
            options.key,
            listen,
            on_message=later.hear,
            on_silence=later.lose,
            silence_s=options.patience.silence_s,
        ) as messenger,
        Primary(
            options.name,
            messenger,
            comm,
            machine.builder,
            version=options.version,
            engine=options.engine,
            connector=connector,
            patience=options.patience,
            on_event=options.report,
        ) as primary,
    ):
        leads: list[RunLeader] = []

        def note(peer: str, said: Note) -> None:
            leads[0].note(peer, said)

        executor = RunExecutor(options.name, comm, machine.lanes, machine.builder.free_bytes, on_note=note)
        with AdaptivePlanner(
            primary,
            machine.builder.free_bytes,
            choose,
            coding=coding,
            is_adaptive=is_adaptive,
            is_measuring=is_measuring,
            on_event=options.report,
        ) as planner:
            leads.append(RunLeader(primary, executor, planner))
            later.begin(primary.handle_message, primary.handle_lost_peer)
            yield PrimaryMember(primary, leads[0], planner, comm, messenger, machine.builder)


@dataclass(slots=True)
class _DeferredCallbacks:
    """Callbacks with a late target; events before `begin` are dropped."""

    _hear: Callable[[str, AnyMessage], None] | None = None
    _lose: Callable[[str], None] | None = None

    def begin(self, hear: Callable[[str, AnyMessage], None], lose: Callable[[str], None]) -> None:
        self._hear, self._lose = hear, lose

    def hear(self, peer: str, message: AnyMessage) -> None:
        if self._hear is not None:  # a worker repeats its Hello until it is answered
            self._hear(peer, message)

    def lose(self, peer: str) -> None:
        if self._lose is not None:
            self._lose(peer)
