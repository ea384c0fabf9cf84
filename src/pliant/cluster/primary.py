"""The primary's side of the control messages: who may join, who holds which plan, who is at fault.

Leads no run (see `lead`) and decides nothing about partitions (see `steer`).
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from threading import Condition
from typing import final

from pliant.cluster.blame import Accusation, Verdict, judge
from pliant.cluster.coding import Coding
from pliant.cluster.comm import Comm
from pliant.cluster.control import Control
from pliant.cluster.held import Held, Hold
from pliant.cluster.measure_links import measure_links
from pliant.cluster.messages import (
    AnyMessage,
    Bye,
    Failed,
    Forget,
    Hello,
    Measure,
    Measured,
    Ping,
    Pong,
    Prepare,
    Ran,
    Ready,
    Refused,
    Report,
    Status,
    Unable,
    Welcome,
    Who,
    decode,
    encode,
)
from pliant.cluster.monitor import Monitor
from pliant.cluster.patience import Patience
from pliant.cluster.worker import Introduce, OnEvent
from pliant.errors import ClusterError, PeerMisbehaved
from pliant.ir.cluster import Capability
from pliant.ir.cost import Link
from pliant.ir.partition import Partition
from pliant.models.encoder_source import EncoderSource

N_PINGS = 5
_LOOK_S = 0.1
"""How often a wait looks: no news tells that a member's penalty is over."""


class NotReady(ClusterError):  # noqa: N818 - it says what is missing
    """Members of a plan that do not hold it: `reasons` by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


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
        data_address: str = "",
        patience: Patience = Patience(),  # noqa: B008 - frozen
        introduce: Introduce = lambda addresses: None,
        on_event: OnEvent = lambda text: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self.comm, self.patience, self.clock = name, comm, patience, clock
        self.monitor = Monitor(clock)
        self._control, self._hold, self._introduce, self._on_event = control, hold, introduce, on_event
        self._version, self._data_address = version, data_address
        self._news = Condition()
        self._answers: dict[int, dict[str, Ready | Unable]] = {}
        self._reports: dict[int, dict[str, tuple[Ran, ...]]] = {}
        self._accusations: list[Accusation] = []
        self._watched: tuple[int, frozenset[str]] = (-1, frozenset())
        self._measured: dict[int, dict[str, Measured]] = {}
        self._plan = self._epoch = 0
        self._is_closed = False

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
            self._control.send(peer, encode(message))

    # What others say.

    def hear(self, peer: str, data: bytes) -> None:
        """Take one message; whoever sends what is no message is refused by name."""
        try:
            message = decode(data, peer)
        except PeerMisbehaved as error:
            self._refuse(peer, str(error))
            return
        match message:
            case Hello():
                self._greet(peer, message)
            case Status(free_bytes=free_bytes, last_epoch=last_epoch):
                self._start_after(last_epoch)
                known = self.monitor.get(peer)
                if known is None or not known.is_here:
                    self.send(peer, Who())
                self.monitor.has_memory(peer, free_bytes)
            case Ready(plan=plan) | Unable(plan=plan):
                with self._news:
                    self._answers.setdefault(plan, {})[peer] = message
                    self._news.notify_all()
            case Measured(epoch=epoch):
                with self._news:
                    self._measured.setdefault(epoch, {})[peer] = message
                    self._news.notify_all()
            case Failed(epoch=epoch):
                accused = message.peer or peer
                self.accuse(epoch, Accusation(peer, accused, message.is_misbehaviour, message.reason))
            case Report(epoch=epoch, spans=spans):
                with self._news:
                    self._reports.setdefault(epoch, {})[peer] = spans
                    self._news.notify_all()
            case Pong(sent_s=sent_s, clock_s=clock_s):
                now_s = self.clock()
                self.monitor.has_clock(peer, clock_s - (sent_s + now_s) / 2, now_s - sent_s)
            case Bye():
                self.lose(peer)
            case _:
                pass  # meant for a worker

    def lose(self, peer: str) -> None:
        """`peer` is silent or has left."""
        if self.monitor.leave(peer):
            self._on_event(f"lost {peer}")
        self._disturb(peer)

    def _greet(self, peer: str, hello: Hello) -> None:
        known = self.monitor.get(peer)
        if known is not None and known.refused is not None:
            self.send(peer, Refused(known.refused))
            return
        if hello.version != self._version:
            self.send(
                peer,
                Refused(f"it runs pliant {hello.version}, the primary {self._version}: install the same."),
            )
            return
        self._start_after(hello.last_epoch)
        if known is None or not known.is_here:
            self._on_event(f"{peer} joined")
        elif known.hello.data_address != hello.data_address:
            self._disturb(peer)  # it started anew before its silence was noticed
        self.monitor.greet(peer, hello, self._plan + 1)
        self.send(peer, Welcome(self._version))
        for _ in range(N_PINGS):
            self.send(peer, Ping(self.clock()))
        with self._news:
            self._news.notify_all()

    def _refuse(self, peer: str, reason: str) -> None:
        """Never again: it lied."""
        self.monitor.refuse(peer, reason)
        self._on_event(f"refused {peer}: {reason}")
        self.send(peer, Refused(reason))
        self._disturb(peer)

    def _disturb(self, peer: str) -> None:
        """End the epoch that counts on `peer`, and wake whoever waits for news."""
        epoch, members = self._watched
        if peer in members:
            self.comm.drop(epoch)
        with self._news:
            self._news.notify_all()

    # Who is there.

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
                f"{', '.join(here) or 'none'}. Start them with `pliant worker --join` and this address, "
                "holding the same key."
            )

    # Measuring.

    def next_epoch(self) -> int:
        """A number that no exchange has used, as far as the workers know: not for another primary either."""
        with self._news:
            self._epoch += 1
            return self._epoch

    def _start_after(self, epoch: int) -> None:
        with self._news:
            self._epoch = max(self._epoch, epoch)

    def measure_devices(
        self, source: EncoderSource, tokens: int, names: Collection[str]
    ) -> dict[str, Capability]:
        """What each of `names` can do with a model, one after another; who fails is left out.

        Raises what goes wrong on this device.
        """
        found = {}
        for name in names:
            if name == self.name:
                found[name] = self._hold.measure(source, tokens)
                continue
            epoch = self.next_epoch()
            self.send(name, Measure(epoch, source.identity, tokens, (name,), {}))
            said = self._await_measured(epoch, (name,)).get(name)
            if said is not None and said.capability is not None:
                found[name] = said.capability
            else:
                self._on_event(f"{name} was not measured: {_reason(said)}")
        return found

    def measure_links(self, names: Collection[str]) -> dict[tuple[str, str], Link]:
        """Both directions of every pair of `names`, this member among them; those that failed are missing."""
        epoch, members = self.next_epoch(), tuple(sorted(names))
        others = [name for name in members if name != self.name]
        addresses = self._addresses(others)
        self._introduce(addresses)
        for name in others:
            self.send(name, Measure(epoch, None, 0, members, addresses))
        found: dict[tuple[str, str], Link] = {}
        try:
            found.update(measure_links(self.comm, members, epoch))
        except ClusterError as error:
            self._on_event(f"links were not measured: {error}")
            self.comm.drop(epoch)
        for said in self._await_measured(epoch, others).values():
            found |= {(k.src, k.dst): Link(k.rtt_s, k.bandwidth_Bps) for k in said.links}
        return found

    def _await_measured(self, epoch: int, names: Collection[str]) -> dict[str, Measured]:
        until_s = self.clock() + self.patience.prepare_s
        with self._news:
            while (left_s := until_s - self.clock()) > 0 and any(
                name not in self._measured.get(epoch, {}) and self._is_here(name) for name in names
            ):
                self._news.wait(left_s)
            return self._measured.pop(epoch, {})

    # Plans.

    def prepare(
        self, source: EncoderSource, partition: Partition, coding: Coding, *, is_in_place: bool = False
    ) -> tuple[Held, Mapping[str, Ready]]:
        """Have `partition` held ready by everybody in it, here too.

        Raises NotReady naming those who cannot, or said nothing for too long; they are not asked again
        for a while. `is_in_place` lets workers give up all other plans first.
        """
        with self._news:
            self._plan += 1
            plan = self._plan
        others = [d for d in partition.participants if d != self.name]
        addresses = self._addresses(others)
        for name in others:
            if is_in_place:
                self.send(name, Forget(()))
            self.send(name, Prepare(plan, source.identity, partition, coding, addresses))
        self._introduce(addresses)
        holder = self._hold.prepare(source, partition)
        answers = self._await_ready(plan, others)
        return Held(plan, source, partition, coding, holder), answers

    def _addresses(self, others: Collection[str]) -> dict[str, str]:
        """Where data of this member and the others goes."""
        addresses = {self.name: self._data_address} if self._data_address else {}
        for name in others:
            member = self.monitor.get(name)
            if member is not None and member.hello.data_address:
                addresses[name] = member.hello.data_address
        return addresses

    def is_held(self, held: Held) -> bool:
        """Whether everybody in a plan still holds it: none has started anew, or lost this member, since."""
        known = [self.monitor.get(d) for d in held.partition.participants if d != self.name]
        return all(member is not None and member.first_plan <= held.number for member in known)

    def forget(self, keep: Collection[Held]) -> None:
        """Tell everybody which plans are still needed, and keep no other here."""
        self._hold.keep([held.holder for held in keep])
        for member in self.monitor.members:
            if member.is_here:
                self.send(member.name, Forget(tuple(held.number for held in keep)))

    def _await_ready(self, plan: int, others: Collection[str]) -> Mapping[str, Ready]:
        until_s = self.clock() + self.patience.prepare_s
        with self._news:
            while True:
                answers = self._answers.get(plan, {})
                waiting = [name for name in others if name not in answers and self._is_here(name)]
                left_s = until_s - self.clock()
                if not waiting or left_s <= 0:
                    break
                self._news.wait(left_s)
            self._answers.pop(plan, None)
        ready = {name: a for name, a in answers.items() if isinstance(a, Ready)}
        reasons = {name: a.reason for name, a in answers.items() if isinstance(a, Unable)}
        for name in others:
            if name not in answers:
                reasons[name] = "did not get ready in time" if self._is_here(name) else "left"
        for name, reason in reasons.items():
            self._on_event(f"{name} is left out: {reason}")
            self.monitor.fail(name)
        if reasons:
            raise NotReady(reasons)
        return ready

    def _is_here(self, name: str) -> bool:
        member = self.monitor.get(name)
        return member is not None and member.is_here and member.refused is None

    # Faults.

    def watch(self, epoch: int, members: Collection[str]) -> None:
        """From now on the silence or failure of one of `members` ends `epoch`."""
        with self._news:
            if self._watched[0] != epoch:
                self._accusations.clear()
            self._watched = (epoch, frozenset(members))
        if any(not self._is_here(name) for name in members):
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
        return bool(self._accusations) or any(not self._is_here(name) for name in members)

    def verdicts(self) -> tuple[Verdict, ...]:
        """Who was at fault in the watched epoch, once reports of it had time to come; they are left out."""
        until_s = self.clock() + self.patience.grace_s
        _, members = self._watched
        with self._news:
            while (left_s := until_s - self.clock()) > 0 and not self._silent(members):
                self._news.wait(left_s)
            accusations = tuple(self._accusations)
        found = judge(self.name, accusations, self._silent(members))
        for verdict in found:
            if verdict.is_liar:
                self._refuse(verdict.member, verdict.reason)
            else:
                self.monitor.fail(verdict.member)
                self._on_event(f"{verdict.member} is left out: {verdict.reason}")
        return found

    def _silent(self, members: Collection[str]) -> dict[str, float]:
        return {
            name: min(self._control.heard_s_ago(name), 1e6)
            for name in members
            if (known := self.monitor.get(name)) is None or not known.is_here
        }

    def reports(self, epoch: int, names: Collection[str]) -> dict[str, tuple[Ran, ...]]:
        """What `names` ran in `epoch`, on this member's clock, as far as they say so in time."""
        until_s = self.clock() + self.patience.report_s
        with self._news:
            while (
                not set(names) <= set(self._reports.get(epoch, {})) and (left_s := until_s - self.clock()) > 0
            ):
                self._news.wait(left_s)
            found = self._reports.pop(epoch, {})
        return {name: self._on_our_clock(name, spans) for name, spans in found.items()}

    def _on_our_clock(self, name: str, spans: tuple[Ran, ...]) -> tuple[Ran, ...]:
        member = self.monitor.get(name)
        by_s = 0.0 if member is None else member.offset_s
        return tuple(Ran(s.epoch, s.segment, s.step, s.start_s - by_s, s.end_s - by_s) for s in spans)


def _reason(said: Measured | None) -> str:
    return "it said nothing" if said is None else said.reason or "it said nothing of itself"
