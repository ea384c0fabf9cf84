"""The members of a cluster: what each offered, when it was at fault, what memory it has."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import final

from pliant.cluster.control.messages import Hello
from pliant.cluster.watch.roll import MOST


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as the primary knows it.

    `away_until_s` keeps a member that failed out of new plans for a while; `refused` says why it is left out,
    which is for good if it `is_barred`, and otherwise until it says another hello. It holds no plan numbered
    below `first_plan`: it said hello since. `offset_s` is its clock minus the primary's, known to half of
    `round_trip_s`.
    """

    name: str
    hello: Hello
    free_bytes: int
    is_here: bool = True
    n_faults: int = 0
    n_faults_lately: int = 0
    first_plan: int = 0
    away_until_s: float = 0.0
    refused: str | None = None
    is_barred: bool = False
    offset_s: float = 0.0
    round_trip_s: float | None = None
    compared_s: float = 0.0

    def is_usable(self, now_s: float) -> bool:
        return self.is_here and self.refused is None and self.away_until_s <= now_s


PARTING = 50e-6
"""Seconds a second that two clocks may part by: twice what quartz is usually off by."""
_NOBODY = Hello(version="", data_address="", n_threads=0, free_bytes=0, models=())
"""What is known of who was refused before it said a hello that could be read."""


@final
@dataclass(slots=True)
class Monitor:
    """The members by name; any thread may call any of it.

    A member that fails stays out of new plans for `penalty_s`, twice that the next time, and so on until it
    has been in a run to the end.
    """

    clock: Callable[[], float]
    penalty_s: float = 0.5
    _members: dict[str, Member] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def greet(self, name: str, hello: Hello, first_plan: int = 0) -> Member:
        """A member says hello, for the first time or again; what it did before is not forgotten.

        It may be another process than before, so plans numbered below `first_plan` are not held there; if it
        was refused, and not barred, it is not any more.
        """
        with self._lock:
            self._make_room(name)
            known = self._members.get(name)
            if known is None:
                member = Member(name, hello, hello.free_bytes)
            else:
                member = replace(known, hello=hello, free_bytes=hello.free_bytes, is_here=True)
            refused = member.refused if member.is_barred else None
            self._members[name] = member = replace(member, first_plan=first_plan, refused=refused)
            return member

    def get(self, name: str) -> Member | None:
        with self._lock:
            return self._members.get(name)

    def is_here(self, name: str) -> bool:
        """Whether it has joined, was not refused, and is heard."""
        member = self.get(name)
        return member is not None and member.is_here and member.refused is None

    def leave(self, name: str) -> bool:
        """It is silent or said goodbye; False if it was not here."""
        with self._lock:
            known = self._members.get(name)
            if known is None or not known.is_here:
                return False
            self._members[name] = replace(known, is_here=False)
            return True

    def fail(self, name: str) -> None:
        """It was at fault, though perhaps not by its will."""
        with self._lock:
            if (known := self._members.get(name)) is not None:
                until_s = self.clock() + self.penalty_s * 2 ** min(known.n_faults_lately, 10)
                self._members[name] = replace(
                    known,
                    n_faults=known.n_faults + 1,
                    n_faults_lately=known.n_faults_lately + 1,
                    away_until_s=until_s,
                )

    def forgive(self, name: str) -> None:
        """It was in a run to the end: the next failure is the first again."""
        with self._lock:
            if (known := self._members.get(name)) is not None:
                self._members[name] = replace(known, n_faults_lately=0)

    def refuse(self, name: str, reason: str, *, is_barred: bool) -> bool:
        """Leave it out, for good or until it says another hello; False if that is nothing new."""
        with self._lock:
            self._make_room(name)
            known = self._members.get(name) or Member(name, _NOBODY, 0, is_here=False)
            if known.is_barred or (known.refused == reason and not is_barred):
                return False
            self._members[name] = replace(known, refused=reason, is_barred=is_barred)
            return True

    def _make_room(self, name: str) -> None:
        """Forget who is not here where `name` would be one too many."""
        if name not in self._members and len(self._members) >= MOST:
            self._members = {n: m for n, m in self._members.items() if m.is_here}

    def has_memory(self, name: str, free_bytes: int) -> None:
        with self._lock:
            if (known := self._members.get(name)) is not None:
                self._members[name] = replace(known, free_bytes=free_bytes)

    def has_clock(self, name: str, offset_s: float, round_trip_s: float) -> None:
        """Keep the offset that is known best: of the shortest round trip, until clocks have parted since."""
        with self._lock:
            known, now_s = self._members.get(name), self.clock()
            if known is None:
                return
            if known.round_trip_s is not None:
                parted_s = PARTING * (now_s - known.compared_s)
                if known.round_trip_s / 2 + parted_s <= round_trip_s / 2:
                    return
            self._members[name] = replace(
                known, offset_s=offset_s, round_trip_s=round_trip_s, compared_s=now_s
            )

    @property
    def members(self) -> tuple[Member, ...]:
        """All that ever said hello, or were refused before, by name."""
        with self._lock:
            return tuple(self._members[name] for name in sorted(self._members))

    def usable(self) -> tuple[Member, ...]:
        """Those that a plan may count on now."""
        now_s = self.clock()
        return tuple(member for member in self.members if member.is_usable(now_s))
