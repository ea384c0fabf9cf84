"""The memory of this process, and one budget that several sessions share."""

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

from pliant.errors import BudgetError, PliantError, StoreError
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.plan.memory_shares import MemoryDemand, MemoryOption, RequestCount, cost_s, divide
from pliant.quantities import format_bytes, parse_bytes
from pliant.run.reservation import Reservation
from pliant.run.sample_runs import is_sample
from pliant.system import trim_heap

_LOG = logging.getLogger("pliant.run")


def memory_limit_of(memory: "Memory | None") -> int | None:
    """The memory limit of one session; None for no limit or a shared budget. Raises InputError."""
    return None if memory is None or isinstance(memory, MemoryBudget) else parse_bytes(memory)


def preload_of(preload: str | int | None, memory: "Memory | None") -> int | None:
    """The requested preload buffer in bytes. By default 0 without a memory limit, else None: the planner
    chooses.
    """
    if preload is None:
        return 0 if memory is None else None
    return parse_bytes(preload)


class BudgetedSession(Protocol):
    """A session that keeps as much of its model in memory as a budget allows."""

    name: str

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds now; must be fast."""
        ...

    def hold(self, n_bytes: int) -> None:
        """Hold at most `n_bytes` from now on: free the rest, or read what fits. Call with `turns` held.

        Raises BudgetError, changing nothing, if it must hold more.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The share of the model `name` in a budget, and the bytes of it in memory.

    A share outside the division is what its session may hold; 0 if the system can reclaim all of it, as of
    weights that are mapped from a file. An answer needs `loading_s` to load the rest. `n_asked`
    counts the requests of about the last minute.
    """

    name: str
    share_bytes: int
    held_bytes: int
    loading_s: float
    n_asked: float


@dataclass(slots=True)
class _Member:
    """A session that takes part in the division: its possible holdings and its recent number of requests.

    In the division, it counts as asked once when it was opened (`prior`). It cannot answer with less than
    `needs_bytes`, which may exceed its smallest holding.
    """

    session: "weakref.ref[BudgetedSession]"
    demand: MemoryDemand
    prior: RequestCount
    requests: RequestCount
    needs_bytes: int

    @property
    def frees_bytes(self) -> int:
        """What it needs for its answers and can free between them."""
        return self.needs_bytes - self.demand.least_bytes


BudgetOwner = BudgetedSession | Reservation


class MemoryBudget:
    """Bytes that all sessions of a process may hold together; a session gets its share before it allocates.

    Sessions of several threads may share it. A session with a given preload buffer reserves its memory. The
    rest is divided among the others (`plan/memory_shares.py`) when a session is opened, when one needs more
    than it has, and by `rebalance`: the least useful weights are freed first. The answers of these sessions
    are serialised by `turns`, so that one session can make others free memory. The share of a
    garbage-collected session is free again.
    """

    def __init__(self, total_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_bytes = total_bytes
        self.turns = ForkSafeLock()
        self._reserved: dict[int, int] = {}
        self._fixed = weakref.WeakValueDictionary[int, Reservation]()
        self._members: dict[int, _Member] = {}
        self._reserving, self._counting, self._clock = ForkSafeLock(), ForkSafeLock(), clock
        self._change_s = 0.0

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - sum(list(self._reserved.values()))

    @property
    def least_bytes(self) -> int:
        """The bytes within which each session can answer, while the others hold the least that they can."""
        return self.needs_bytes - sum(sorted(one.frees_bytes for one in list(self._members.values()))[:-1])

    @property
    def needs_bytes(self) -> int:
        """The sum of what each session needs to answer, if none of them frees anything for another."""
        members = dict(self._members)
        fixed = sum(n_bytes for key, n_bytes in list(self._reserved.items()) if key not in members)
        return fixed + sum(member.needs_bytes for member in members.values())

    @property
    def shares(self) -> tuple[MemoryShare, ...]:
        """The current share of each session that takes part in the division, then of each reservation."""
        sessions = [member.session() for member in list(self._members.values())]
        fixed = [reference() for reference in self._fixed.valuerefs()]  # `values` runs code between them
        shares = [self.share_of(one) for one in (*sessions, *fixed) if one is not None]
        return tuple(share for share in shares if share is not None)

    def share_of(self, owner: BudgetOwner) -> MemoryShare | None:
        """The current share of `owner`; None if it has none."""
        member, n_bytes = self._members.get(id(owner)), self._reserved.get(id(owner), 0)
        if isinstance(owner, Reservation):
            n_requests = owner.requests.at(self._clock())
            share = MemoryShare(owner.name, n_bytes, owner.held_bytes, 0.0, n_requests)
            return share if share.share_bytes or share.held_bytes else None
        if member is None:
            return None
        seconds, n_requests = _held_of(member.demand, n_bytes).seconds, member.requests.at(self._clock())
        return MemoryShare(owner.name, n_bytes, owner.held_bytes, seconds, n_requests)

    def joint_share(self, owners: Sequence[BudgetOwner]) -> MemoryShare | None:
        """The sum of the shares of a model's owners, with the first one's name and requests."""
        found = [share for share in map(self.share_of, owners) if share is not None]
        share_bytes, held_bytes = sum(one.share_bytes for one in found), sum(one.held_bytes for one in found)
        return replace(found[0], share_bytes=share_bytes, held_bytes=held_bytes) if found else None

    def most_share_of(self, session: BudgetedSession) -> int | None:
        """The most that `ensure_share` grants `session`; None if it does not take part in the division."""
        members, reserved = dict(self._members), dict(self._reserved)
        if id(session) not in members:
            return None
        fixed = sum(n_bytes for key, n_bytes in reserved.items() if key not in members)
        least = sum(member.demand.least_bytes for key, member in members.items() if key != id(session))
        return self.total_bytes - fixed - least

    def reserve(self, owner: object, n_bytes: int) -> None:
        """Set `owner`'s share to `n_bytes`. Raises BudgetError, and changes nothing, when it does not fit."""
        with self._reserving.lock:
            held = self._reserved.get(id(owner), 0)
            self._require(n_bytes, self.free_bytes + held)
            if id(owner) not in self._reserved:
                weakref.finalize(owner, self._forget, id(owner)).atexit = False
            self._reserved[id(owner)] = n_bytes
            if isinstance(owner, Reservation):
                self._fixed[id(owner)], owner.n_bytes = owner, n_bytes

    def room_for(self, owner: object) -> int:
        """The most that `reserve_fixed` grants `owner`."""
        return self.total_bytes - self.least_bytes + self._reserved.get(id(owner), 0)

    def reserve_fixed(self, owner: object, n_bytes: int) -> None:
        """`reserve` for an owner outside the division, for which sessions free weights.

        Waits for the answer in progress. Raises BudgetError, and changes nothing, if what all others need at
        least leaves too little.
        """
        with self.turns.lock:
            held = self._reserved.get(id(owner), 0)
            self._require(n_bytes, self.room_for(owner))
            if n_bytes - held > self.free_bytes:
                self._apply(self._divided(self._demands(), n_bytes - held), None)
            self.reserve(owner, n_bytes)

    def resize(self, total_bytes: int) -> None:
        """Change the bytes that all sessions share: they free what is above it, or load what fits now.

        Waits for the answer in progress. Raises BudgetError with the missing bytes, and changes nothing, if
        the sessions need more for their answers.
        """
        with self.turns.lock:
            self._require_total(total_bytes, self.least_bytes)
            less_bytes = self.total_bytes - total_bytes
            if less_bytes > self.free_bytes:
                self._apply(self._divided(self._demands(), less_bytes), None)
                self._require_total(total_bytes, total_bytes + less_bytes - self.free_bytes)
            self.total_bytes = total_bytes
            if less_bytes < 0:
                self._rebalance()

    def release(self, owner: object) -> None:
        """Free `owner`'s share; a no-op for an owner without one."""
        self._forget(id(owner))

    def join(self, session: BudgetedSession, holdings: tuple[MemoryOption, ...], needs_bytes: int = 0) -> int:
        """The share of a session that is being opened, at least `needs_bytes`; call with `turns` held.

        `holdings` are the session's possible holdings; it cannot answer with less than `needs_bytes`, nor
        than the smallest of them. Other sessions free weights that save less time. Raises BudgetError naming
        the least with which each session can answer.
        """
        demand = MemoryDemand(session.name, holdings)
        counts = RequestCount(self._clock(), 1.0), RequestCount(self._clock())
        needs_bytes = max(needs_bytes, demand.least_bytes)
        self._members[id(session)] = _Member(weakref.ref(session), demand, *counts, needs_bytes)
        try:
            self._check_answers()
            demands = self._demands()
            demands[id(session)] = demands[id(session)].at_least(needs_bytes)
            shares = self._divided(demands)
            self._apply(shares, session)
        except BaseException:
            self._forget(id(session))
            raise
        return shares[id(session)]

    def ensure_share(
        self, session: BudgetedSession, least_bytes: int, holdings: tuple[MemoryOption, ...] | None = None
    ) -> int:
        """The share of `session`, which cannot answer with less than `least_bytes`; call with `turns` held.

        If its share is too small, other sessions free the weights that save the least time. `holdings` are
        its possible holdings from now on, and `least_bytes` what it needs. Raises BudgetError, and changes
        nothing, if there is still too little, or would be for another session's answers.
        """
        member = self._members[id(session)]
        before = member.demand, member.needs_bytes
        share = self._reserved[id(session)]
        try:
            if holdings is not None:
                member.demand, member.needs_bytes = replace(before[0], holdings=holdings), least_bytes
                self._check_answers()
            if least_bytes <= share:
                return share
            demands = {key: one.at_most(self._reserved.get(key, 0)) for key, one in self._demands().items()}
            demands[id(session)] = demands[id(session)].at_least(least_bytes).at_most(least_bytes)
            shares = self._divided(demands)
            self._apply(shares, session)
        except BaseException:
            member.demand, member.needs_bytes = before
            raise
        return shares[id(session)]

    def count_request(self, session: BudgetedSession) -> None:
        """Count a request for `session`, unless it is a sample; call with `turns` held."""
        if not is_sample():
            self._count(self._members[id(session)])

    def count_of_node(self, owner: BudgetOwner, *, is_refused: bool) -> None:
        """Count a request of a node for `owner`: of a session, which counts its answers, a refused one alone.

        Without this, a freed model that takes long to load would never be loaded again.
        """
        found = owner if isinstance(owner, Reservation) else self._members.get(id(owner))
        if found is not None and (is_refused or found is owner):
            self._count(found)

    def rebalance(self) -> None:
        """Divide the budget anew by the models' recent request rates; waits for the answer in progress.

        Nothing changes if the new division saves less time per minute than its loads, or the last change,
        took.
        """
        with self.turns.lock:
            self._rebalance()

    def __enter__(self) -> "MemoryBudget":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reserved.clear()
        self._members.clear()

    def _rebalance(self) -> None:
        demands = self._demands()
        now = [_held_of(demand, self._reserved.get(key, 0)) for key, demand in demands.items()]
        shares = self._divided(demands)
        wanted = [_held_of(demand, shares[key]) for key, demand in demands.items()]
        members = list(demands.values())
        loads_s = sum(max(0.0, a.seconds - b.seconds) for a, b in zip(now, wanted, strict=True))
        if cost_s(members, now) - cost_s(members, wanted) <= max(self._change_s, loads_s):
            return
        start_s = self._clock()
        self._apply(shares, None)
        self._change_s = self._clock() - start_s

    def _check_answers(self) -> None:
        """Raise BudgetError unless each session can answer while the others hold their least."""
        members, demands = dict(self._members), self._demands()
        key = max(demands.keys() & members.keys(), key=lambda one: members[one].frees_bytes)
        self._divided(demands | {key: demands[key].at_least(members[key].needs_bytes)})

    def _demands(self) -> dict[int, MemoryDemand]:
        now_s = self._clock()
        members = list(self._members.items())  # a session that is dropped leaves at any time
        return {
            key: replace(one.demand, weight=one.prior.at(now_s) + one.requests.at(now_s))
            for key, one in members
        }

    def _count(self, counted: _Member | Reservation) -> None:
        now_s = self._clock()
        with self._counting.lock:  # `turns` may be held by an answer for long
            counted.requests = counted.requests.plus_one(now_s)

    def _require(self, n_bytes: int, room_bytes: int) -> None:
        if n_bytes > room_bytes:
            raise BudgetError(
                f"{format_bytes(n_bytes)} were asked for, but of the {format_bytes(self.total_bytes)} "
                f"that all models share only {format_bytes(room_bytes)} are free. "
                "Lower this model's preload buffer or memory, or close another model.",
                n_bytes - room_bytes,
            )

    @staticmethod
    def _require_total(total_bytes: int, needs_bytes: int) -> None:
        if needs_bytes > total_bytes:
            raise BudgetError(
                f"{format_bytes(total_bytes)} are less than the models need, {format_bytes(needs_bytes)}.",
                needs_bytes - total_bytes,
            )

    def _divided(self, demands: Mapping[int, MemoryDemand], withheld_bytes: int = 0) -> dict[int, int]:
        """Bytes for each member, out of the bytes that are not reserved by others, less `withheld_bytes`."""
        divided = sum(self._reserved.get(key, 0) for key in demands)
        holdings = divide(list(demands.values()), self.free_bytes + divided - withheld_bytes)
        return {key: one.n_bytes for key, one in zip(demands, holdings, strict=True)}

    def _apply(self, shares: Mapping[int, int], caller: BudgetedSession | None) -> None:
        """Shrink sessions first, then grow the others; `caller` applies its own share.

        Raises BudgetError if a session must hold more than its new share, so that the caller's does not fit.
        """
        mine = -1 if caller is None else id(caller)
        changes = {key: n_bytes - self._reserved.get(key, 0) for key, n_bytes in shares.items()}
        for key in sorted(changes, key=lambda key: changes[key]):
            member = self._members.get(key)
            session = None if member is None else member.session()
            if session is None or (not changes[key] and key != mine):
                continue
            if key != mine and changes[key] < 0 and not _hold(session, shares[key]):
                continue  # it still holds what it did
            if key != mine and changes[key] > self.free_bytes:
                continue  # another one does
            self.reserve(session, shares[key])
            if key != mine and changes[key] > 0:
                _hold(session, shares[key])
        trim_heap()  # glibc keeps freed memory in fragments

    def _forget(self, key: int) -> None:
        self._reserved.pop(key, None)
        self._members.pop(key, None)


def _hold(session: BudgetedSession, n_bytes: int) -> bool:
    """Apply a share to another session; whether it holds no more. Its errors are logged, not raised: its own
    requests will raise them.
    """
    try:
        session.hold(n_bytes)
    except PliantError as error:
        _LOG.warning("%s cannot hold what it should: %s", session.name, error)
        return isinstance(error, StoreError)  # raised after it freed; others leave it its former limit
    return True


def _held_of(demand: MemoryDemand, share_bytes: int) -> MemoryOption:
    """The largest holding that fits the share."""
    return demand.at_most(share_bytes).holdings[-1]


Memory = str | int | MemoryBudget
"""A limit of the memory that one session adds to its process, such as "8MB", or a shared budget."""
