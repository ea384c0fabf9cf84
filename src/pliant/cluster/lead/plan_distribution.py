"""Have all members of a plan hold it ready, and free plans that are no longer needed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from threading import Condition
from typing import final

from pliant.cluster.control.messages import (
    AnyMessage,
    PrepareFailure,
    PrepareRequest,
    PrepareSuccess,
    ReleaseRequest,
)
from pliant.cluster.control.pending_replies import PendingReplies
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.member.ready_plan import ReadyPlan, StageBuilder
from pliant.cluster.member.worker import OnEvent
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import MemberConnector
from pliant.cluster.watch.member_registry import MemberRegistry
from pliant.errors import ClusterError
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_source import EncoderSource

_AGAIN = "it said hello again, and may hold no plan from before"
_KEPT, _MOST_KEPT, _ROWS_KEPT, _SHORT = 4, 96, 2048, 64


class PlanNotReadyError(ClusterError):
    """Members of a plan that do not hold it: `reasons` by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


@final
class PlanDistribution:
    """The numbered plans of the primary `name`; `number` is the last one's. `news` is notified of changes."""

    def __init__(
        self,
        name: str,
        builder: StageBuilder,
        connector: MemberConnector,
        monitor: MemberRegistry,
        send: Callable[[str, AnyMessage], None],
        news: Condition,
        patience: ClusterTimeouts,
        on_event: OnEvent,
        clock: Callable[[], float],
    ) -> None:
        self._name, self._builder, self._connector, self._monitor = name, builder, connector, monitor
        self._send, self._news, self._patience, self._on_event = send, news, patience, on_event
        self._answers: PendingReplies[PrepareSuccess | PrepareFailure] = PendingReplies(news, clock)
        self.number = 0

    def record_answer(self, plan: int, peer: str, answer: PrepareSuccess | PrepareFailure) -> None:
        """Record `peer`'s answer on whether it holds the plan of that number ready."""
        if plan <= self.number:  # later numbers, which nobody would take, would replace those of real plans
            self._answers.put(plan, peer, answer)

    def prepare(
        self, source: EncoderSource, partition: Partition, coding: Coding, *, is_in_place: bool = False
    ) -> tuple[ReadyPlan, Mapping[str, PrepareSuccess]]:
        """Have `partition` held ready by all its members, including this one.

        Raises PlanNotReadyError naming members that cannot, or did not answer in time; these are excluded for
        a while. With `is_in_place`, all members including this one free all other plans first, and no run may
        be in progress. Raises ClusterError if members cannot meet and no member is known to be at fault.
        """
        others = tuple(d for d in partition.participants if d != self._name)
        self._check_codes(partition, others)
        with self._news:
            self.number += 1
            plan = self.number
        members = self._name, *others
        rendezvous = self._connector.rendezvous(members)
        for name in others:
            told = self.addresses(others, name)
            self._send(
                name,
                PrepareRequest(
                    plan, source.identity, partition, coding, members, told, rendezvous, is_in_place
                ),
            )
        if is_in_place:
            self._tell_to_forget((), but=others)
        runner = (self._builder.replace if is_in_place else self._builder.prepare)(source, partition)
        failure: ClusterError | None = None
        try:
            reached = self.addresses(others)
            self._connector.join(members, reached, rendezvous, lambda: self._may_begin(plan, others))
        except ClusterError as error:
            failure = error
        answers = self._await_ready(plan, others, failure)
        return ReadyPlan(plan, source, partition, coding, runner), answers

    def _check_codes(self, partition: Partition, others: Collection[str]) -> None:
        """Raise PlanNotReadyError for members that would treat coded layers as float32."""
        known = [self._monitor.get(name) for name in others if partition.bits]
        reasons = {
            member.name: "its release of pliant holds no coded weights: install the same on all devices"
            for member in known
            if member is not None and not member.hello.holds_codes
        }
        for name, reason in reasons.items():
            self._on_event(f"{name} is excluded: {reason}")
        if reasons:
            raise PlanNotReadyError(reasons)

    def _may_begin(self, plan: int, others: Collection[str]) -> bool:
        is_refused = any(isinstance(answer, PrepareFailure) for answer in self._answers.peek(plan))
        return not is_refused and all(map(self._monitor.is_here, others))

    def addresses(self, others: Collection[str], told: str | None = None) -> dict[str, str]:
        """Return the data addresses of the others, and with `told`, of them, this member's for that one."""
        known = {name: self._monitor.get(name) for name in others}
        found = {name: m.hello.data_address for name, m in known.items() if m and m.hello.data_address}
        if told in found:
            found[self._name] = self._connector.address_for(found[told])
        return found

    def is_held(self, held: ReadyPlan) -> bool:
        """Return whether all members still hold a plan: none has restarted, or lost this member, since."""
        known = [self._monitor.get(d) for d in held.partition.participants if d != self._name]
        return all(member is not None and member.first_plan <= held.number for member in known)

    def forget(self, keep: Collection[ReadyPlan]) -> None:
        """Tell all members which plans are still needed, and free the others here."""
        self._builder.keep([held.runner for held in keep])
        self._tell_to_forget([held.number for held in keep])

    def _tell_to_forget(self, keep: Collection[int], but: Collection[str] = ()) -> None:
        for member in self._monitor.members:
            if member.is_here and member.name not in but:
                self._send(member.name, ReleaseRequest(tuple(keep)))

    def _await_ready(
        self, plan: int, others: Collection[str], failure: ClusterError | None
    ) -> Mapping[str, PrepareSuccess]:
        """Return all members' answers; after a local `failure`, missing answers are not waited for."""
        timeout_s = self._patience.prepare_s if failure is None else self._patience.grace_s

        def is_new(name: str) -> bool:
            member = self._monitor.get(name)
            return member is not None and member.first_plan > plan

        def is_awaited(name: str) -> bool:
            return self._monitor.is_here(name) and not is_new(name)

        answers = self._answers.take(plan, others, is_awaited, timeout_s)
        ready = {name: a for name, a in answers.items() if isinstance(a, PrepareSuccess)}
        reasons = {name: a.reason for name, a in answers.items() if isinstance(a, PrepareFailure)}
        waited_s = dict[str, float]()
        for name in others:
            if name not in answers and not self._monitor.is_here(name):
                reasons[name] = "left"
            elif name not in answers and is_new(name):
                reasons[name] = _AGAIN
            elif name not in answers and failure is None:
                reasons[name], waited_s[name] = "did not get ready in time", timeout_s
        for name, reason in reasons.items():
            self._on_event(f"{name} is excluded: {reason}")
            if reason != _AGAIN:  # its hello may have been repeated before it heard the answer
                self._monitor.record_failure(name, waited_s.get(name, 0.0))
        if reasons:
            raise PlanNotReadyError(reasons)
        if failure is not None:
            raise failure
        return ready


def select_recent(held: Sequence[ReadyPlan]) -> list[ReadyPlan]:
    """Return the most recently used plans that members keep, including other lengths and models.

    Texts come in all lengths, and preparing a plan takes as long as a short run. A few plans are kept
    whatever their length, more if they are short, and the latest one of each model, for its weights. Long
    plans, as batches of texts have, do not count among short ones, as most texts alone have.
    """
    latest = {one.source.whole.identity: one.number for one in held}
    kept = {*latest.values()}
    for is_short in (True, False):
        recent = [one for one in reversed(held) if (one.partition.tokens <= _SHORT) == is_short]
        n_rows = accumulate(one.partition.tokens for one in recent)
        n_kept = max(sum(n <= _ROWS_KEPT for n in n_rows), _KEPT)
        kept.update(one.number for one in recent[: min(n_kept, _MOST_KEPT)])
    return [one for one in held if one.number in kept]
