"""The members of a cluster: their offers, faults and memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import final

from pliant.cluster.control.messages import Hello
from pliant.cluster.watch.peer_roster import MAX_PEERS


@dataclass(frozen=True, slots=True)
class Member:
    """The primary's record of a worker.

    `away_until_s` excludes a member that failed from new plans until then. `refused` is the reason why it
    is excluded: permanently if it `is_barred`, otherwise until its next Hello. It holds no plan numbered
    below `first_plan`, because it has sent a Hello since. `offset_s` is its clock minus the primary's,
    known to half of `round_trip_s`.
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


_LONGEST_PENALTY_S = 600.0
CLOCK_DRIFT = 50e-6
"""Assumed drift between two clocks, in seconds per second: twice the usual error of quartz."""
_PLACEHOLDER_HELLO = Hello(version="", data_address="", n_threads=0, free_bytes=0, models=())
"""Placeholder for a member that was refused before it sent a readable Hello."""


@final
@dataclass(slots=True)
class MemberRegistry:
    """The members by name; thread-safe.

    A member that fails is excluded from new plans for `penalty_s`, or as long as others waited for it; the
    time doubles with each failure until the member completes a run.
    """

    clock: Callable[[], float]
    penalty_s: float = 0.5
    _members: dict[str, Member] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def register(self, name: str, hello: Hello, first_plan: int = 0) -> Member:
        """Register a member's Hello, its first or a repeated one; its history is kept.

        The member may be a new process, so it holds no plans numbered below `first_plan`. A refusal is
        cleared unless the member is barred.
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
        """Return whether it has joined, is not refused, and is connected."""
        member = self.get(name)
        return member is not None and member.is_here and member.refused is None

    def mark_absent(self, name: str) -> bool:
        """Mark it as silent or departed; return False if it already was."""
        with self._lock:
            known = self._members.get(name)
            if known is None or not known.is_here:
                return False
            self._members[name] = replace(known, is_here=False)
            return True

    def record_failure(self, name: str, waited_s: float = 0.0) -> None:
        """Record a fault, intentional or not, for which others waited, and start its back-off."""
        with self._lock:
            if (known := self._members.get(name)) is not None:
                penalty_s = max(self.penalty_s, waited_s) * 2 ** min(known.n_faults_lately, 10)
                until_s = self.clock() + min(penalty_s, _LONGEST_PENALTY_S)
                self._members[name] = replace(
                    known,
                    n_faults=known.n_faults + 1,
                    n_faults_lately=known.n_faults_lately + 1,
                    away_until_s=until_s,
                )

    def reset_failures(self, name: str) -> None:
        """Record a completed run: the back-off starts from `penalty_s` again."""
        with self._lock:
            if (known := self._members.get(name)) is not None:
                self._members[name] = replace(known, n_faults_lately=0)

    def refuse(self, name: str, reason: str, *, is_barred: bool) -> bool:
        """Exclude it, permanently or until its next Hello; return False if nothing changes."""
        with self._lock:
            self._make_room(name)
            known = self._members.get(name) or Member(name, _PLACEHOLDER_HELLO, 0, is_here=False)
            if known.is_barred or (known.refused == reason and not is_barred):
                return False
            self._members[name] = replace(known, refused=reason, is_barred=is_barred)
            return True

    def _make_room(self, name: str) -> None:
        """Delete departed members if `name` would exceed the maximum."""
        if name not in self._members and len(self._members) >= MAX_PEERS:
            self._members = {n: m for n, m in self._members.items() if m.is_here}

    def set_memory(self, name: str, free_bytes: int) -> None:
        with self._lock:
            if (known := self._members.get(name)) is not None:
                self._members[name] = replace(known, free_bytes=free_bytes)

    def set_clock(self, name: str, offset_s: float, round_trip_s: float) -> None:
        """Store the offset of the shortest round trip, allowing for clock drift since its measurement."""
        with self._lock:
            known, now_s = self._members.get(name), self.clock()
            if known is None:
                return
            if known.round_trip_s is not None:
                parted_s = CLOCK_DRIFT * (now_s - known.compared_s)
                if known.round_trip_s / 2 + parted_s <= round_trip_s / 2:
                    return
            self._members[name] = replace(
                known, offset_s=offset_s, round_trip_s=round_trip_s, compared_s=now_s
            )

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that ever sent a Hello or were refused, by name."""
        with self._lock:
            return tuple(self._members[name] for name in sorted(self._members))

    def usable(self) -> tuple[Member, ...]:
        """Return the members that a plan may use now."""
        now_s = self.clock()
        return tuple(member for member in self.members if member.is_usable(now_s))
