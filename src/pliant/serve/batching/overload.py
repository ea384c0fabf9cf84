"""Choose which waiting requests to refuse so that all others can be in time.

Moore and Hodgson ("An n job, one machine sequencing algorithm for minimizing the number of late jobs",
Management Science 1968): requests are planned in the order in which they run; if one would be late, the
longest of those planned so far is refused. On one worker, with times that are known, that leaves the fewest
late. A refusal at once also costs a client less than one when its deadline is near.

Among several clients, the longest of the client with the most planned work is refused. A client that sends
many short requests therefore takes no time from another one with less work (max-min fairness of time).
"""

from collections.abc import Collection, Sequence
from heapq import heapify, heapreplace

import numpy as np

from pliant.arrays import Bool, Float64
from pliant.serve.batching.queue_times import OrderedTimes, QueueTimes

SPARE = 1.5
"""Planned time of a request relative to its expected time. Half of the requests take longer than expected,
and batches can form only where there is time to spare: simulated at 1.5 times the capacity, 5 % more requests
are in time than with 1.0, and at 0.9 times the capacity as many.
"""
_MOST_PLANS = 64
"""Maximum number of times that all requests are planned again without one of them."""
_EXACT = 64
"""Requests that are planned on each of several workers; later ones start when these would be free if work
could be divided among them at will, which is later than the first is free by less than one request."""


def excess(
    queue: QueueTimes, now_s: float, free_s: Sequence[float], pace: float, without: Collection[int] = ()
) -> list[int]:
    """Slots of the requests to refuse: without them and those in `without`, all others start in time.

    `free_s` are the seconds until each worker is free; a request is expected to take `pace` times its time
    alone on one of them. The rows of one request are refused together, and count as one of their total time.
    Among requests that take equally long, the last is refused. Requests without a deadline and those with
    best effort are never refused here, nor those whose bound alone is late already. If the times of a long
    queue have grown, the first refusals replace longer requests; after these, a request that would be late is
    refused itself, since planning thousands again would block the event loop.
    """
    plan = queue.ordered(now_s, now_s + min(free_s), without)
    times_s, is_due = SPARE * pace * plan.seconds, plan.is_refusable.copy()
    free = [now_s + seconds for seconds in free_s]
    is_refused = np.zeros(len(times_s), np.bool_)
    for n_plans in range(_MOST_PLANS):
        late = np.flatnonzero(is_due & (planned_starts(times_s, free) > plan.latest_s))
        if not len(late):
            break
        out = np.zeros_like(is_refused) if n_plans else _late_without_others(plan, times_s, is_due, free)
        if not out.any():
            out = plan.groups == _group_to_refuse(plan, times_s, is_due, int(late[0]))
        is_refused |= out
        times_s[out], is_due[out] = 0.0, False
    else:
        _refuse_late(plan, times_s, is_due, free, is_refused)
    return [int(slot) for slot in plan.slots[is_refused]]


def _late_without_others(
    plan: OrderedTimes,
    times_s: Float64[np.ndarray, " n"],
    is_due: Bool[np.ndarray, " n"],
    free: Sequence[float],
) -> Bool[np.ndarray, " n"]:
    """The requests that are late even if all others that may be refused are: refusing these helps none."""
    starts_s = planned_starts(np.where(is_due, 0.0, times_s), free)
    return np.isin(plan.groups, plan.groups[is_due & (starts_s > plan.latest_s)])


def _group_to_refuse(
    plan: OrderedTimes, times_s: Float64[np.ndarray, " n"], is_due: Bool[np.ndarray, " n"], late: int
) -> int:
    """The longest request of the client with the most work, of those planned up to the index `late`."""
    planned = np.flatnonzero(is_due[: late + 1])
    of_clients = np.bincount(plan.clients[planned], times_s[planned])
    if np.count_nonzero(of_clients) > 1:
        most_s = of_clients.max() * (1.0 - 1e-9)  # sums of the same times in another order
        planned = planned[of_clients[plan.clients[planned]] >= most_s]
    of_groups = np.bincount(plan.groups, times_s)[plan.groups[planned]]
    longest = planned[of_groups == of_groups.max()]
    return int(plan.groups[longest[plan.arrivals[longest].argmax()]])


def planned_starts(times_s: Float64[np.ndarray, " n"], free: Sequence[float]) -> Float64[np.ndarray, " n"]:
    """When each request starts, on the worker that is free first."""
    free = list(free)
    n_exact = 0 if len(free) == 1 else min(_EXACT, len(times_s))
    heapify(free)
    starts = np.empty(len(times_s))
    for i, seconds in enumerate(times_s[:n_exact].tolist()):
        starts[i] = free[0]
        heapreplace(free, free[0] + seconds)
    if n_exact < len(times_s):
        before_s = np.cumsum(times_s[n_exact:]) - times_s[n_exact:]
        # The n workers that are free first; one that is busy for longer takes none of them.
        levels = [(before_s + sum(first)) / len(first) for first in _first_free(free)]
        starts[n_exact:] = levels[0] if len(levels) == 1 else np.minimum.reduce(levels)
    return starts


def _first_free(free: Sequence[float]) -> list[list[float]]:
    in_order = sorted(free)
    return [in_order[: n + 1] for n in range(len(in_order))]


def _refuse_late(
    plan: OrderedTimes,
    times_s: Float64[np.ndarray, " n"],
    is_due: Bool[np.ndarray, " n"],
    free: Sequence[float],
    is_refused: Bool[np.ndarray, " n"],
) -> None:
    """Refuse each request that would be late, and plan the others once."""
    free = list(free)
    heapify(free)
    for i in range(len(times_s)):
        if is_due[i] and free[0] > plan.latest_s[i]:
            out = plan.groups == plan.groups[i]
            is_refused |= out
            times_s[out], is_due[out] = 0.0, False
        heapreplace(free, free[0] + float(times_s[i]))
