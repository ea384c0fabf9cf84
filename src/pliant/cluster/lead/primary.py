"""The primary's side of the control messages: admission of members, what they say, faults.

Leads no run (see `lead`) and decides nothing about partitions (see `steer`).
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from threading import Condition
from typing import final

from pliant.cluster.control.control import Control
from pliant.cluster.control.messages import (
    AnyMessage,
    Bye,
    Failed,
    Hello,
    Inquire,
    Measured,
    Overview,
    Ping,
    Pong,
    Ran,
    Ready,
    Refused,
    Report,
    Status,
    Unable,
    Unreadable,
    Welcome,
    Who,
)
from pliant.cluster.control.patience import Patience
from pliant.cluster.control.replies import Replies
from pliant.cluster.lead.overview import ClusterStatus, MemberStatus
from pliant.cluster.lead.plan_distribution import PlanDistribution
from pliant.cluster.lead.run_log import RunLog
from pliant.cluster.member.ready_plan import Hold
from pliant.cluster.member.worker import OnEvent
from pliant.cluster.net.comm import Comm
from pliant.cluster.net.connect_members import Engine, Meet, NoMeeting
from pliant.cluster.watch.blame import Accusation, Verdict, judge
from pliant.cluster.watch.monitor import Member, Monitor
from pliant.errors import ClusterError

N_PINGS = 5
_LAST_CLAIM = 1 << 48
"""The last epoch that a worker is believed to have seen: none may claim so many that no number is left."""
_DISMISSED = "it was removed by an operator of the primary's node."
_LOOK_S = 0.1
"""How often a wait looks: no news tells that a member's penalty is over."""


@final
class Primary:
    """The member `name` that others join; a context manager.

    `control` must hand every message to `hear` and every silence to `lose`, on any thread but one at a time.
    """

    def __init__(
        self,
        name: str,
        control: Control,
        comm: Comm,
        hold: Hold,
        *,
        version: str,
        engine: Engine = "zmq",
        meet: Meet = NoMeeting(),  # noqa: B008 - without state
        patience: Patience = Patience(),  # noqa: B008 - frozen
        on_event: OnEvent = lambda text: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self.comm, self.patience, self.clock = name, comm, patience, clock
        self.monitor = Monitor(clock)
        self.hold, self.meet, self.on_event = hold, meet, on_event
        self._control, self._version, self._engine = control, version, engine
        self._news = Condition()
        self.plans = PlanDistribution(
            name, hold, meet, self.monitor, self.send, self._news, patience, on_event, clock
        )
        self._reports: Replies[tuple[Ran, ...]] = Replies(self._news, clock)
        self._measured: Replies[Measured] = Replies(self._news, clock)
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
        """Tell the workers goodbye; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            for member in self.monitor.members:
                self.send(member.name, Bye())

    def send(self, peer: str, message: AnyMessage) -> None:
        """Send `message` if `peer` is here; who is gone is known by its silence."""
        with suppress(ClusterError):
            self._control.send(peer, message)

    # What others say.

    def hear(self, peer: str, message: AnyMessage) -> None:
        """Take one message; whoever sends what is no message is refused by name."""
        match message:
            case Unreadable(why=why, is_other_version=is_other_version):
                self._refuse(peer, why, is_barred=not is_other_version)
            case Hello():
                self._greet(peer, message)
            case Status(free_bytes=free_bytes, last_epoch=last_epoch):
                self._start_after(last_epoch)
                known = self.monitor.get(peer)
                if known is None or not known.is_here:
                    self.send(peer, Who())
                self.monitor.has_memory(peer, free_bytes)
                self.send(peer, Ping(self.clock()))  # the first one may have met a busy device
            case Ready(plan=plan) | Unable(plan=plan):
                self.plans.hear(plan, peer, message)
            case Measured(epoch=epoch):
                self._measured.put(epoch, peer, message)
            case Failed(epoch=epoch):
                accused = message.peer or peer
                self.accuse(epoch, Accusation(peer, accused, message.is_misbehaviour, message.reason))
            case Report(epoch=epoch, spans=spans):
                self._reports.put(epoch, peer, spans)
            case Pong(sent_s=sent_s, clock_s=clock_s):
                now_s = self.clock()
                self.monitor.has_clock(peer, clock_s - (sent_s + now_s) / 2, now_s - sent_s)
            case Inquire():
                self.send(peer, Overview(self.status()))
            case _:
                pass  # meant for a worker, or of a later version

    def lose(self, peer: str) -> None:
        """`peer` is silent or has left."""
        if self.monitor.leave(peer):
            self.on_event(f"lost {peer}")
        self._disturb(peer)

    def _greet(self, peer: str, hello: Hello) -> None:
        known = self.monitor.get(peer)
        if known is not None and known.is_barred:
            self.send(peer, Refused(f"{known.refused}"))
            return
        if (why := self._unfit(peer, hello)) is not None:
            self._refuse(peer, why, is_barred=False)
            return
        self._start_after(hello.last_epoch)
        if known is None or not known.is_here:
            self.on_event(f"{peer} joined")
        else:  # it was started anew, or did not hear this member for a while, and holds no plan any more
            self._disturb(peer)
        self.monitor.greet(peer, hello, self.plans.number + 1)
        self.send(peer, Welcome(self._version))
        for _ in range(N_PINGS):
            self.send(peer, Ping(self.clock()))
        with self._news:
            self._news.notify_all()

    def _unfit(self, peer: str, hello: Hello) -> str | None:
        if peer in self._dismissed:
            return _DISMISSED
        if hello.engine != self._engine:
            return f"it sends by {hello.engine}, the primary by {self._engine}: give both the same --engine."
        return None

    def dismiss(self, name: str) -> None:
        """Leave a worker out until it is readmitted, also where it comes again; from any thread.

        A run that needs it goes on without it. A process that has the key may join again under another name.
        """
        self._dismissed[name] = None
        self._refuse(name, _DISMISSED, is_barred=False)

    def readmit(self, name: str) -> None:
        """A worker that was dismissed may join again, and is asked to; from any thread."""
        if name in self._dismissed:
            del self._dismissed[name]
            self.send(name, Who())

    def _refuse(self, peer: str, reason: str, *, is_barred: bool) -> None:
        """Leave `peer` out: never again if it lied, which `is_barred`, or until it is mended."""
        if self.monitor.refuse(peer, reason, is_barred=is_barred):
            self.on_event(f"refused {peer}: {reason}")
            self._disturb(peer)
        self.send(peer, Refused(reason))

    def _disturb(self, peer: str) -> None:
        """End the epoch that counts on `peer`, and wake whoever waits for news."""
        epoch, members = self._watched
        if peer in members:
            self.comm.drop(epoch)
        with self._news:
            self._news.notify_all()

    # Who is there.

    def status(self) -> ClusterStatus:
        """Everybody who ever joined, by name, and what was run; from any thread, also during a run."""
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
        """Return once `n_workers` can be used. Raises ClusterError naming who came."""
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
                f"{', '.join(here) or 'none'}. {self._turned_away()}Start them with `pliant worker --join` "
                "and this address, holding the same key."
            )

    def _turned_away(self) -> str:
        """Who knocked in vain, and why, as a sentence or none."""
        refused = [f"{m.name} ({m.refused.rstrip('.')})" for m in self.monitor.members if m.refused]
        known = [*refused, *self._control.problems]
        return f"Refused: {'; '.join(known)}. " if known else ""

    def next_epoch(self) -> int:
        """A number that no exchange has used, as far as the workers know: not for another primary either."""
        with self._news:
            self._epoch += 1
            return self._epoch

    def _start_after(self, epoch: int) -> None:
        with self._news:
            self._epoch = max(self._epoch, min(epoch, _LAST_CLAIM))

    def measured(self, epoch: int, names: Collection[str]) -> dict[str, Measured]:
        """What `names` say of the measurement `epoch`, once they are done or it took too long."""
        return self._measured.take(epoch, names, self.monitor.is_here, self.patience.prepare_s)

    # Faults.

    def watch(self, epoch: int, members: Collection[str]) -> None:
        """From now on the silence or failure of one of `members` ends `epoch`."""
        with self._news:
            if self._watched[0] != epoch:
                self._accusations.clear()
            self._watched = (epoch, frozenset(members))
        if any(not self.monitor.is_here(name) for name in members):
            self.comm.drop(epoch)

    def accuse(self, epoch: int, accusation: Accusation) -> None:
        """Somebody, perhaps this member itself, waited in vain."""
        with self._news:
            if epoch != self._watched[0]:
                return
            self._accusations.append(accusation)
            self._news.notify_all()
        self.comm.drop(epoch)

    @property
    def is_disturbed(self) -> bool:
        """Whether the epoch that is watched has failed, though perhaps not here."""
        _, members = self._watched
        return bool(self._accusations) or any(not self.monitor.is_here(name) for name in members)

    def verdicts(self) -> tuple[Verdict, ...]:
        """Who was at fault in the watched epoch, once reports of it had time to come; they are left out."""
        until_s = self.clock() + self.patience.grace_s
        _, members = self._watched
        with self._news:
            while (left_s := until_s - self.clock()) > 0 and all(map(self.monitor.is_here, members)):
                self._news.wait(left_s)
            accusations = (*self._accusations, *self._refused(members))
        found = judge(self.name, accusations, self._silent(members))
        for verdict in found:
            if verdict.is_liar:
                self._refuse(verdict.member, verdict.reason, is_barred=True)
            else:
                self.monitor.fail(verdict.member)
                self.on_event(f"{verdict.member} is excluded: {verdict.reason}")
        return found

    def _refused(self, members: Collection[str]) -> Iterator[Accusation]:
        """Those of `members` that said here what no member says."""
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

    def reports(self, epoch: int, names: Collection[str]) -> dict[str, tuple[Ran, ...]]:
        """What `names` ran in `epoch`, on this member's clock, as far as they say so in time."""
        found = self._reports.take(epoch, names, self.monitor.is_here, self.patience.report_s)
        return {name: self._on_our_clock(name, spans) for name, spans in found.items()}

    def _on_our_clock(self, name: str, spans: tuple[Ran, ...]) -> tuple[Ran, ...]:
        member = self.monitor.get(name)
        by_s = 0.0 if member is None else member.offset_s
        return tuple(Ran(s.epoch, s.segment, s.step, s.start_s - by_s, s.end_s - by_s) for s in spans)
