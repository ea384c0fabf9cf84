"""A worker: it registers with a primary, holds the plans it receives and runs its part of each run.

It makes no decisions about partitions and knows other workers only by name.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import final

from pliant.cluster.control.control_channel import ControlChannel
from pliant.cluster.control.messages import (
    AnyMessage,
    Bye,
    Hello,
    HelloRequest,
    JoinRefusal,
    MeasureReply,
    MeasureRequest,
    Ping,
    Pong,
    PrepareFailure,
    PrepareRequest,
    PrepareSuccess,
    ReleaseRequest,
    SegmentFailure,
    SegmentRequest,
    SpanReport,
    StatusUpdate,
    StopRequest,
    UnreadableMessage,
    Welcome,
    to_device_measurement,
    to_link_measurements,
)
from pliant.cluster.lead.measure_links import measure_links
from pliant.cluster.member.ready_plan import ReadyPlan, StageBuilder
from pliant.cluster.member.run_executor import RunExecutor, SegmentTask, StageRunner
from pliant.cluster.net.comm import Comm
from pliant.cluster.net.connect_members import MemberConnector, NullConnector, Transport
from pliant.cluster.watch.fault_attribution import fault_of
from pliant.errors import ClusterError, LaneError
from pliant.ir.link import Link
from pliant.models.encoder.encoder_source import EncoderSource, parse_identity
from pliant.run.lanes import Lanes

HELLO_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """A worker's offer: its models by identity, its machine, and its data transport."""

    version: str
    sources: Mapping[str, EncoderSource]
    free_bytes: Callable[[], int]
    n_threads: int
    engine: Transport = "zmq"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker's state: the primaries that accepted it, and the counts of successful and failed runs."""

    joined: tuple[str, ...]
    n_refusals: int
    n_plans: int
    free_bytes: int
    n_runs: int
    n_failed: int


OnEvent = Callable[[str], None]
"""Receives one sentence per event that a user may want to know."""


@final
class ClusterWorker:
    """The member `name`, until it is closed; a context manager.

    `control` must pass every message to `handle_message` and every silent peer to `handle_lost_peer`, one
    call at a time, on any thread.
    """

    def __init__(
        self,
        name: str,
        control: ControlChannel,
        comm: Comm,
        lanes: Lanes,
        offer: WorkerOffer,
        builder: StageBuilder,
        *,
        connector: MemberConnector = NullConnector(),  # noqa: B008 - stateless
        on_event: OnEvent = lambda text: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self._control, self._comm, self._offer, self._builder = control, comm, offer, builder
        self._connector, self._on_event, self._clock = connector, on_event, clock
        self._executor = RunExecutor(name, comm, lanes, offer.free_bytes)
        self._welcome: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._serving: str | None = None
        self._plans: dict[int, ReadyPlan] = {}
        self._lock = Lock()
        self._running = Lock()  # held while stages may run
        # The last epochs that were stopped, that ended here, and that measured, over all primaries.
        self._stopped = self._ended = self._measured = -1
        self._inbox: SimpleQueue[tuple[str, PrepareRequest | ReleaseRequest | MeasureRequest] | None] = (
            SimpleQueue()
        )
        self._orders: SimpleQueue[SegmentRequest | StopRequest | None] = SimpleQueue()
        self._n_runs = self._n_failed = 0
        self._closed = Event()
        self._threads = [
            Thread(target=self._run_plan_loop, name="pliant-plans", daemon=True),
            Thread(target=self._run_segment_loop, name="pliant-turns", daemon=True),
            Thread(target=self._run_hello_loop, name="pliant-knock", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "ClusterWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def refusals(self) -> Mapping[str, str]:
        """The reasons of primaries that refused this worker, by primary's name."""
        return dict(self._refusals)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why no primary answers at the addresses given to `join`, as messages for a person."""
        return tuple(self._control.problems)

    @property
    def status(self) -> WorkerStatus:
        """The current state."""
        with self._lock:
            n_plans = len(self._plans)
        joined = tuple(sorted(self._welcome.copy()))
        counts = (self._n_runs, self._n_failed)
        return WorkerStatus(joined, len(self._refusals), n_plans, self._offer.free_bytes(), *counts)

    def join(self, address: str) -> None:
        """Connect to one more primary at HOST:PORT. Raises ClusterError if the address is invalid."""
        self._control.connect(address)

    def close(self) -> None:
        """Send Bye and stop. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        for peer in self._welcome.copy():  # the control thread may change it
            self._send(peer, Bye())
        self._end_runs()
        self._inbox.put(None)
        self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def handle_message(self, peer: str, message: AnyMessage) -> None:
        """Process one message from `peer`. An undecodable message is reported and otherwise ignored."""
        match message:
            case UnreadableMessage(why=why):
                if peer in self._welcome or self._refusals.get(peer) != why:
                    self._on_event(why)
                if peer not in self._welcome:  # it cannot decode a Hello either
                    self._refusals[peer] = why
            case Welcome():
                self._refusals.pop(peer, None)
                self._welcome.add(peer)
                self._on_event(f"joined {peer}")
            case JoinRefusal(reason=reason):
                self._welcome.discard(peer)
                if self._refusals.get(peer) != reason:
                    self._on_event(f"{peer} refuses this worker: {reason}")
                self._refusals[peer] = reason
            case HelloRequest():
                self._welcome.discard(peer)
                self._refusals.pop(peer, None)
                self._forget_plans(peer)
            case PrepareRequest() | ReleaseRequest() | MeasureRequest():
                self._inbox.put((peer, message))
            case SegmentRequest() if peer == self._serving:
                self._orders.put(message)
            case StopRequest(epoch=epoch) if peer == self._serving:
                self._stop(epoch)
            case Ping(sent_s=sent_s):
                self._send(peer, Pong(sent_s, self._clock()))
            case _:
                pass  # of an earlier run, or meant for a primary

    def handle_lost_peer(self, peer: str) -> None:
        """Handle a silent or departed `peer`: its runs end, and another primary may be served."""
        if peer in self._welcome:
            self._welcome.discard(peer)
            self._on_event(f"lost {peer}")
        self._refusals.pop(peer, None)  # a later primary of that name may accept this worker
        self._forget_plans(peer)

    def _forget_plans(self, peer: str) -> None:
        """End the runs of a primary that counts this worker as new, and free its plans."""
        if peer == self._serving:
            self._end_runs()
        self._inbox.put((peer, ReleaseRequest(())))  # after any plan that is being prepared for it

    def _stop(self, epoch: int) -> None:
        self._stopped = max(self._stopped, epoch)
        self._comm.drop(epoch)
        self._orders.put(StopRequest(epoch))

    def _end_runs(self) -> None:
        epoch = self._executor.epoch
        if epoch is not None:
            self._stop(epoch)

    def _run_hello_loop(self) -> None:
        while not self._closed.wait(HELLO_INTERVAL_S):
            for peer in list(self._control.peers):
                if peer in self._welcome:
                    self._send(peer, StatusUpdate(self._offer.free_bytes(), self._last_epoch))
                elif peer not in self._refusals:
                    self._send(peer, self._hello)

    @property
    def _hello(self) -> Hello:
        offer = self._offer
        return Hello(
            version=offer.version,
            data_address=self._connector.address,
            n_threads=offer.n_threads,
            free_bytes=offer.free_bytes(),
            models=tuple(offer.sources),
            last_epoch=self._last_epoch,
            engine=offer.engine,
            holds_codes=True,
            holds_submodels=True,
            packs_texts=True,
        )

    @property
    def _last_epoch(self) -> int:
        ran = self._executor.epoch
        return max(self._stopped, self._ended, self._measured, -1 if ran is None else ran)

    def _run_plan_loop(self) -> None:
        while (order := self._inbox.get()) is not None:
            peer, message = order
            match message:
                case PrepareRequest():
                    self._prepare(peer, message)
                case MeasureRequest():
                    self._measure(peer, message)
                case ReleaseRequest(keep=keep) if self._serving in (None, peer):
                    with self._lock:
                        self._plans = {n: plan for n, plan in self._plans.items() if n in keep}
                        if not self._plans:
                            self._serving = None
                        held = [plan.runner for plan in self._plans.values()]
                    self._builder.keep(held)

    def _prepare(self, peer: str, wanted: PrepareRequest) -> None:
        try:
            if self._serving not in (None, peer):
                raise ClusterError(f"{self.name} serves {self._serving}; try again when it is done.")
            source = self._source(wanted.model)
            if wanted.is_in_place:
                runner = self._replace(source, wanted)
            else:
                runner = self._builder.prepare(source, wanted.partition)
            self._connector.join(wanted.members, wanted.addresses, wanted.rendezvous, self._inbox.empty)
        except Exception as error:  # noqa: BLE001 - any error must be sent: the primary waits for an answer
            with self._lock:
                held = [plan.runner for plan in self._plans.values()]
            self._builder.keep(held)  # not the weights that were loaded for this plan
            self._send(peer, PrepareFailure(wanted.plan, f"{error}" or type(error).__name__))
            return
        with self._lock:
            self._serving = peer
            self._plans[wanted.plan] = ReadyPlan(wanted.plan, source, wanted.partition, wanted.coding, runner)
        loaded = runner.loaded
        self._send(
            peer, PrepareSuccess(wanted.plan, loaded.seconds, loaded.n_bytes, self._offer.free_bytes())
        )

    def _replace(self, source: EncoderSource, wanted: PrepareRequest) -> StageRunner:
        """Free every plan, when no run uses one, before the wanted plan is loaded."""
        with self._running:
            with self._lock:
                self._plans.clear()
            return self._builder.replace(source, wanted.partition)

    def _measure(self, peer: str, wanted: MeasureRequest) -> None:
        device, reason = None, None
        found: dict[tuple[str, str], Link] = {}
        try:
            if self._serving not in (None, peer):
                raise ClusterError(f"{self.name} serves {self._serving}; try again when it is done.")
            if wanted.model is not None:
                device = to_device_measurement(
                    self._builder.measure(self._source(wanted.model), wanted.tokens)
                )
            else:
                self._connector.join(wanted.members, wanted.addresses, wanted.rendezvous, self._inbox.empty)
                self._measured = wanted.epoch
                found.update(measure_links(self._comm, wanted.members, wanted.epoch))
        except Exception as error:  # noqa: BLE001 - as above
            reason = f"{error}" or type(error).__name__
        self._send(peer, MeasureReply(wanted.epoch, device, to_link_measurements(found), reason))

    def _source(self, identity: str) -> EncoderSource:
        model, size = parse_identity(identity)
        if model not in self._offer.sources:
            raise ClusterError(f"{self.name} does not hold the model {identity}: start it with --model.")
        source = self._offer.sources[model]
        return source if size is None else source.submodel(*size)

    def _run_segment_loop(self) -> None:
        message = self._orders.get()
        while message is not None:
            message = self._run(message) if isinstance(message, SegmentRequest) else self._orders.get()

    def _run(self, first: SegmentRequest) -> SegmentRequest | StopRequest | None:
        """Run an epoch starting with `first`; return the message that follows it."""
        if first.epoch <= max(self._stopped, self._ended):
            return self._orders.get()
        after: list[SegmentRequest | StopRequest | None] = []
        last = self._last(first.plan)

        def following() -> SegmentTask | None:
            if self._executor.number >= last:  # it may have had no part in segments in between
                return None
            message = self._orders.get()
            while isinstance(message, StopRequest) and message.epoch < first.epoch:
                message = self._orders.get()
            if isinstance(message, SegmentRequest) and message.epoch == first.epoch:
                return self._task(message, self._executor.task)
            after.append(message)
            return None

        segment = first.segment
        try:
            with self._running:
                self._executor.run(self._task(first), following)
            self._n_runs += 1
        except LaneError as error:
            segment = self._executor.number
            self._report_failure(first.epoch, segment, error)
        except Exception as error:  # noqa: BLE001 - a failed run must not end the worker
            self._report_failure(first.epoch, segment, error)
        self._ended = first.epoch
        peer = self._serving
        if peer is not None:
            self._send(peer, SpanReport(first.epoch, self._executor.take_spans()))
        return after[0] if after else self._orders.get()

    def _last(self, plan: int) -> int:
        """Return the last segment with workers; only the primary runs the one after it."""
        with self._lock:
            held = self._plans.get(plan)
        return 0 if held is None else held.n_segments - 2

    def _task(self, go: SegmentRequest, before: SegmentTask | None = None) -> SegmentTask:
        with self._lock:
            held = self._plans.get(go.plan)
        if held is None:
            raise ClusterError(f"{self.name} was told to run plan {go.plan}, which it does not hold.")
        if before is not None and before.runner is not held.runner and self.name not in go.entrants:
            layer = go.segment - 1
            held.runner.state(layer)[...] = before.runner.state(layer)
        return held.task(self.name, go.epoch, go.segment, go.entrants, go.timeout_s, go.lengths)

    def _report_failure(self, epoch: int, segment: int, error: Exception) -> None:
        self._n_failed += 1
        if epoch <= self._stopped or self._serving is None:
            return
        of = fault_of(error)
        failure = SegmentFailure(epoch, segment, of.peer, of.is_misbehaviour, of.reason, of.is_non_finite)
        self._send(self._serving, failure)

    def _send(self, peer: str, message: AnyMessage) -> None:
        with suppress(ClusterError):  # a closed peer is detected by missed heartbeats
            self._control.send(peer, message)
