"""The times of waiting requests as arrays, so that a long queue is planned in microseconds."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import final

import numpy as np

from pliant.arrays import Bool, Float64, Int64
from pliant.serve.batching.plan_batch import QueuedRequest

_FIRST = 64
"""Initial number of slots; it doubles when they are used."""


@dataclass(frozen=True, slots=True)
class OrderedTimes:
    """Requests in the order in which they are planned. `is_bound`: it has a deadline and can be in time.

    A request that is late takes at most what is left of its deadline (`seconds`), since it is refused
    otherwise; with best effort it takes all of its time. `clients` and `groups` are equal numbers for
    requests of one client and for rows of one request.
    """

    slots: Int64[np.ndarray, " n"]
    start_s: Float64[np.ndarray, " n"]
    latest_s: Float64[np.ndarray, " n"]
    seconds: Float64[np.ndarray, " n"]
    is_bound: Bool[np.ndarray, " n"]
    is_refusable: Bool[np.ndarray, " n"]
    clients: Int64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"]
    arrivals: Int64[np.ndarray, " n"]


@final
class QueueTimes:
    """Waiting requests by slot, an index that is used again after `remove`. Not thread-safe."""

    def __init__(self) -> None:
        self._times = np.zeros((4, _FIRST))
        self._marks = np.zeros((4, _FIRST), np.int64)
        self._is_used = np.zeros(_FIRST, np.bool_)
        self._free = list(range(_FIRST - 1, -1, -1))
        self._clients, self._groups = _KeyNumbers(), _KeyNumbers()
        self._keys: dict[int, tuple[Hashable, Hashable]] = {}
        self._order = np.zeros(0, np.int64)
        self._added, self._removed = list[int](), list[int]()
        self._n_arrivals = 0

    def add(self, one: QueuedRequest, client: str = "", group: Hashable | None = None) -> int:
        """Add a request, and return its slot. Rows of one request have an equal `group`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        keys = client, (slot, self._n_arrivals) if group is None else group
        self._times[:, slot] = one.due_s, one.latest_s, one.fair_s, one.alone.median_s
        numbers = self._clients.use(keys[0]), self._groups.use(keys[1])
        self._marks[:, slot] = *numbers, self._n_arrivals, one.best_effort
        self._is_used[slot], self._keys[slot] = True, keys
        self._added.append(slot)
        self._n_arrivals += 1
        return slot

    def remove(self, slot: int) -> None:
        """Remove a request."""
        client, group = self._keys.pop(slot)
        self._clients.release(client)
        self._groups.release(group)
        self._is_used[slot] = False
        self._removed.append(slot)

    def ordered(self, now_s: float, begin_s: float, without: Collection[int] = ()) -> OrderedTimes:
        """The requests but those in the slots `without`, for work that begins at `begin_s`.

        Sorting takes linear time, since requests stay in the order of the last call.
        """
        order = self._compacted()
        start_s = self._starts(order, now_s)
        if np.any(start_s[1:] < start_s[:-1]):
            by_start = np.argsort(start_s, kind="stable")  # equal ones stay in the order of arrival
            order, start_s = order[by_start], start_s[by_start]
        self._order = order
        if without:
            is_kept = np.isin(order, list(without), invert=True)
            order, start_s = order[is_kept], start_s[is_kept]
        due_s, latest_s, _, median_s = self._times[:, order]
        clients, groups, arrivals, best_effort = self._marks[:, order]
        is_bound = (due_s < inf) & (latest_s >= begin_s)
        is_late = (due_s < inf) & ~is_bound & (best_effort == 0)
        left_s = np.maximum(due_s - begin_s, 0.0)
        seconds = np.where(is_late, np.minimum(median_s, left_s), median_s)
        is_refusable = (due_s < inf) & (latest_s >= now_s) & (best_effort == 0)
        return OrderedTimes(
            order, start_s, latest_s, seconds, is_bound, is_refusable, clients, groups, arrivals
        )

    def _starts(self, order: Int64[np.ndarray, " n"], now_s: float) -> Float64[np.ndarray, " n"]:
        """`QueuedRequest.start_s` of each."""
        due_s, latest_s, fair_s, _ = self._times[:, order]
        is_in_time = (now_s <= latest_s) & (due_s < inf)
        return np.asarray(np.where(is_in_time, latest_s, fair_s))

    def _compacted(self) -> Int64[np.ndarray, " n"]:
        order = self._order
        if self._added:
            order = np.concatenate((order, np.array(self._added, np.int64)))
        if self._removed:
            order = order[self._is_used[order]]
            self._free += self._removed  # not earlier: a slot stands in the order once
        self._added, self._removed = [], []
        return order

    def _grow(self) -> None:
        n = len(self._is_used)
        self._times = np.pad(self._times, ((0, 0), (0, n)))
        self._marks = np.pad(self._marks, ((0, 0), (0, n)))
        self._is_used = np.pad(self._is_used, (0, n))
        self._free = list(range(2 * n - 1, n - 1, -1))


@final
class _KeyNumbers:
    """A small number for each key in use."""

    def __init__(self) -> None:
        self._used: dict[Hashable, list[int]] = {}
        self._free: list[int] = []

    def use(self, key: Hashable) -> int:
        found = self._used.get(key)
        if found is None:
            number = self._free.pop() if self._free else len(self._used)
            found = self._used[key] = [number, 0]
        found[1] += 1
        return found[0]

    def release(self, key: Hashable) -> None:
        found = self._used[key]
        found[1] -= 1
        if not found[1]:
            self._free.append(found[0])
            del self._used[key]


def queue_times(waiting: Sequence[QueuedRequest]) -> QueueTimes:
    """The requests `waiting`, of one client, in the slots 0 to n - 1."""
    made = QueueTimes()
    for one in waiting:
        made.add(one)
    return made
