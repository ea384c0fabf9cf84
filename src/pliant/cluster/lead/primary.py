"""The primary's side of control messages: admission of members, their reports, faults.

Leads no runs (see `lead_run`) and makes no decisions about partitions (see `adaptive_planner`).
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from threading import Condition
from typing import final

from pliant.cluster.control.control_channel import ControlChannel
from pliant.cluster.control.messages import (
    AnyMessage,
    Bye,
    Hello,
    HelloRequest,
    JoinRefusal,
    MeasureReply,
    Ping,
    Pong,
    PrepareFailure,
    PrepareSuccess,
    SegmentFailure,
    SpanReport,
    StatusReply,
    StatusRequest,
    StatusUpdate,
    StepSpan,
    UnreadableMessage,
    Welcome,
)
from pliant.cluster.control.pending_replies import PendingReplies
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.plan_distribution import PlanDistribution
from pliant.cluster.lead.run_log import RunLog
from pliant.cluster.lead.status_report import ClusterStatus, MemberStatus
from pliant.cluster.member.ready_plan import StageBuilder
from pliant.cluster.member.worker import OnEvent
from pliant.cluster.net.comm import Comm
from pliant.cluster.net.connect_members import MemberConnector, NullConnector, Transport
from pliant.cluster.watch.fault_attribution import Accusation, Verdict, attribute_faults
from pliant.cluster.watch.member_registry import Member, MemberRegistry
from pliant.errors import ClusterError

N_PINGS = 5
_LAST_CLAIM = 1 << 48
"""Maximum epoch that a worker may claim to have seen, so that enough numbers remain."""
_DISMISSED = "it was removed by an operator of the primary's node."
_LOOK_S = 0.1
"""Polling interval of a wait: no event signals the end of a member's penalty."""


@final
class Primary:
    """The member `name` that others join; a context manager.

    `control` must pass every message to `handle_message` and every silent peer to `handle_lost_peer`, one
    call at a time, on any thread.
    """

    def __init__(
        self,
        name: str,
        control: ControlChannel,
        comm: Comm,
        builder: StageBuilder,
        *,
        version: str,
        engine: Transport = "zmq",
        connector: MemberConnector = NullConnector(),  # noqa: B008 - stateless
        patience: ClusterTimeouts = ClusterTimeouts(),  # noqa: B008 - frozen
        on_event: OnEvent = lambda text: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self.comm, self.patience, self.clock = name, comm, patience, clock
        self.monitor = MemberRegistry(clock)
        self.builder, self.connector, self.on_event = builder, connector, on_event
        self._control, self._version, self._engine = control, version, engine
        self._news = Condition()
        self.plans = PlanDistribution(
            name, builder, connector, self.monitor, self.send, self._news, patience, on_event, clock
        )
        self._reports: PendingReplies[tuple[StepSpan, ...]] = PendingReplies(self._news, clock)
        self._measured: PendingReplies[MeasureReply] = PendingReplies(self._news, clock)
        self._accusations: list[Accusation] = []
        self._watched: tuple[int, frozenset[str]] = (-1, frozenset())
        self._epoch = 0
        self._is_closed = False
        self._dismissed: dict[str, None] = {}
        self.log = RunLog(clock)

    def __enter__(self) -> "Primary":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send Bye to the workers. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for member in self.monitor.members:
                self.send(member.name, Bye())

    def send(self, peer: str, message: AnyMessage) -> None:
        """Send `message` if `peer` is connected; a closed peer is detected by missed heartbeats."""
        with suppress(ClusterError):
            self._control.send(peer, message)

    # Messages from others.

    def handle_message(self, peer: str, message: AnyMessage) -> None:
        """Process one message; a peer that sends an undecodable message is refused."""
        match message:
            case UnreadableMessage(why=why, is_other_version=is_other_version):
                self._refuse(peer, why, is_barred=not is_other_version)
            case Hello():
                self._greet(peer, message)
            case StatusUpdate(free_bytes=free_bytes, last_epoch=last_epoch):
                self._start_after(last_epoch)
                known = self.monitor.get(peer)
                if known is None or not known.is_here:
                    self.send(peer, HelloRequest())
                self.monitor.set_memory(peer, free_bytes)
                self.send(peer, Ping(self.clock()))  # the first one may have met a busy device
            case PrepareSuccess(plan=plan) | PrepareFailure(plan=plan):
                self.plans.record_answer(plan, peer, message)
            case MeasureReply(epoch=epoch) if epoch <= self._epoch:
                self._measured.put(epoch, peer, message)
            case SegmentFailure(epoch=epoch):
                named, kind = message.peer, message.is_misbehaviour
                accused = named if named and named in {self.name, *self._watched[1]} else peer
                self.accuse(epoch, Accusation(peer, accused, kind, message.reason, message.is_non_finite))
            case SpanReport(epoch=epoch, spans=spans) if epoch <= self._epoch:
                self._reports.put(epoch, peer, spans)
            case Pong(sent_s=sent_s, clock_s=clock_s):
                now_s = self.clock()
                self.monitor.set_clock(peer, clock_s - (sent_s + now_s) / 2, now_s - sent_s)
            case StatusRequest():
                with suppress(ValueError):  # a status of very many members is over the size limit
                    self.send(peer, StatusReply(self.status()))
            case _:
                pass  # meant for a worker, or of a later version

    def handle_lost_peer(self, peer: str) -> None:
        """Handle a silent or departed `peer`."""
        if self.monitor.mark_absent(peer):
            self.on_event(f"lost {peer}")
        self._end_epoch_of(peer)

    def _greet(self, peer: str, hello: Hello) -> None:
        known = self.monitor.get(peer)
        if known is not None and known.is_barred:
            self.send(peer, JoinRefusal(f"{known.refused}"))
            return
        if (why := self._find_refusal(peer, hello)) is not None:
            self._refuse(peer, why, is_barred=False)
            return
        self._start_after(hello.last_epoch)
        if known is None or not known.is_here:
            self.on_event(f"{peer} joined")
        else:  # it restarted, or lost this member for a while, and holds no plan any more
            self._end_epoch_of(peer)
        self.monitor.register(peer, hello, self.plans.number + 1)
        self.send(peer, Welcome(self._version))
        for _ in range(N_PINGS):
            self.send(peer, Ping(self.clock()))
        with self._news:
            self._news.notify_all()

    def _find_refusal(self, peer: str, hello: Hello) -> str | None:
        if peer in self._dismissed:
            return _DISMISSED
        if hello.engine != self._engine:
            return f"it sends by {hello.engine}, the primary by {self._engine}: give both the same --engine."
        return None

    def dismiss(self, name: str) -> None:
        """Exclude a worker until it is readmitted, even if it rejoins; thread-safe.

        A run that needs it continues without it. A process with the key may rejoin under another name.
        """
        self._dismissed[name] = None
        self._refuse(name, _DISMISSED, is_barred=False)

    def readmit(self, name: str) -> None:
        """Allow a dismissed worker to join again, and request its Hello; thread-safe."""
        if name in self._dismissed:
            del self._dismissed[name]
            self.send(name, HelloRequest())

    def _refuse(self, peer: str, reason: str, *, is_barred: bool) -> None:
        """Exclude `peer`: permanently if it `is_barred` for misbehaviour, else until the reason is gone."""
        if self.monitor.refuse(peer, reason, is_barred=is_barred):
            self.on_event(f"refused {peer}: {reason}")
            self._end_epoch_of(peer)
        self.send(peer, JoinRefusal(reason))

    def _end_epoch_of(self, peer: str) -> None:
        """End the epoch that depends on `peer`, and wake waiting threads."""
        epoch, members = self._watched
        if peer in members:
            self.comm.drop(epoch)
        with self._news:
            self._news.notify_all()

    # Members.

    def status(self) -> ClusterStatus:
        """Return all members that ever joined, by name, and the runs; thread-safe, also during a run."""
        return ClusterStatus(
            name=self.name,
            version=self._version,
            engine=self._engine,
            members=tuple(map(self._member_status, self.monitor.members)),
            plan=self.log.plan,
            is_running=self.log.is_running,
            n_runs=self.log.n_runs,
            n_failed=self.log.n_failed,
            faults=self.log.faults(),
            problems=tuple(self._control.problems),
        )

    def _member_status(self, member: Member) -> MemberStatus:
        reason = member.refused
        if reason is None and not member.is_here:
            reason = "not heard"
        if reason is None and not member.is_usable(self.clock()):
            reason = "failed lately"
        return MemberStatus(
            name=member.name,
            is_usable=reason is None,
            reason=reason,
            heard_s_ago=self._control.heard_s_ago(member.name),
            free_bytes=member.free_bytes,
            n_threads=member.hello.n_threads,
            models=member.hello.models,
            n_faults=member.n_faults,
            version=member.hello.version,
        )

    def wait_for(self, n_workers: int, timeout_s: float) -> None:
        """Return when `n_workers` are usable. Raises ClusterError naming those that joined."""
        until_s = self.clock() + timeout_s
        with self._news:
            while len(self.monitor.usable()) < n_workers:
                left_s = until_s - self.clock()
                if left_s <= 0:
                    break
                self._news.wait(min(left_s, _LOOK_S))
        here = [member.name for member in self.monitor.usable()]
        if len(here) < n_workers:
            raise ClusterError(
                f"{len(here)} of {n_workers} workers joined within {timeout_s:.3g} s: "
                f"{', '.join(here) or 'none'}. {self._describe_refused()}Start them with `pliant worker "
                "--join` and this address, holding the same key."
            )

    def _describe_refused(self) -> str:
        """Return refused members with the reasons as a sentence, or an empty string."""
        refused = [f"{m.name} ({m.refused.rstrip('.')})" for m in self.monitor.members if m.refused]
        known = [*refused, *self._control.problems]
        return f"Refused: {'; '.join(known)}. " if known else ""

    def next_epoch(self) -> int:
        """Return a number that no exchange has used, of any primary known to the workers."""
        with self._news:
            self._epoch += 1
            return self._epoch

    def _start_after(self, epoch: int) -> None:
        with self._news:
            self._epoch = max(self._epoch, min(epoch, _LAST_CLAIM))

    def collect_measurements(self, epoch: int, names: Collection[str]) -> dict[str, MeasureReply]:
        """Return the results of `names` for measurement `epoch`, when all are done or at the timeout."""
        return self._measured.take(epoch, names, self.monitor.is_here, self.patience.prepare_s)

    # Faults.

    def watch(self, epoch: int, members: Collection[str]) -> None:
        """End `epoch` from now on if one of `members` fails or falls silent."""
        with self._news:
            if self._watched[0] != epoch:
                self._accusations.clear()
            self._watched = (epoch, frozenset(members))
        if any(not self.monitor.is_here(name) for name in members):
            self.comm.drop(epoch)

    def accuse(self, epoch: int, accusation: Accusation) -> None:
        """Record that a member, possibly this one, timed out waiting for another."""
        with self._news:
            if epoch != self._watched[0]:
                return
            self._accusations.append(accusation)
            self._news.notify_all()
        self.comm.drop(epoch)

    @property
    def has_epoch_failed(self) -> bool:
        """Whether the watched epoch has failed, possibly on another member."""
        _, members = self._watched
        return bool(self._accusations) or any(not self.monitor.is_here(name) for name in members)

    def collect_verdicts(self) -> tuple[Verdict, ...]:
        """Return the members at fault in the watched epoch, after a grace period for reports.

        They are excluded, except for numbers that are not finite, which the input may have caused.
        """
        until_s = self.clock() + self.patience.grace_s
        _, members = self._watched
        with self._news:
            while (left_s := until_s - self.clock()) > 0 and all(map(self.monitor.is_here, members)):
                self._news.wait(left_s)
            accusations = (*self._accusations, *self._refused(members))
        found = attribute_faults(self.name, accusations, self._silent(members))
        for verdict in found:
            if verdict.is_liar:
                self._refuse(verdict.member, verdict.reason, is_barred=True)
            elif not verdict.is_non_finite:
                self.exclude(verdict)
        return found

    def exclude(self, verdict: Verdict) -> None:
        """Exclude a member from new plans for its back-off."""
        self.monitor.record_failure(verdict.member)
        self.on_event(f"{verdict.member} is excluded: {verdict.reason}")

    def _refused(self, members: Collection[str]) -> Iterator[Accusation]:
        """Yield accusations of those of `members` that were refused for invalid messages."""
        for name in members:
            known = self.monitor.get(name)
            if known is not None and known.refused is not None:
                yield Accusation(self.name, name, known.is_barred, known.refused)

    def _silent(self, members: Collection[str]) -> dict[str, float]:
        return {
            name: min(self._control.heard_s_ago(name), 1e6)
            for name in members
            if (known := self.monitor.get(name)) is None or not known.is_here
        }

    def collect_reports(self, epoch: int, names: Collection[str]) -> dict[str, tuple[StepSpan, ...]]:
        """Return what `names` ran in `epoch`, on this member's clock, as far as they report in time."""
        found = self._reports.take(epoch, names, self.monitor.is_here, self.patience.report_s)
        return {name: self._on_our_clock(name, spans) for name, spans in found.items()}

    def _on_our_clock(self, name: str, spans: tuple[StepSpan, ...]) -> tuple[StepSpan, ...]:
        member = self.monitor.get(name)
        by_s = 0.0 if member is None else member.offset_s
        return tuple(StepSpan(s.epoch, s.segment, s.step, s.start_s - by_s, s.end_s - by_s) for s in spans)
