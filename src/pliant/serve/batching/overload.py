"""Choose which waiting requests to refuse so that all others can be in time.

Moore and Hodgson ("An n job, one machine sequencing algorithm for minimizing the number of late jobs",
Management Science 1968): requests are planned in the order in which they run; if one would be late, the
longest of those planned so far is refused. On one worker, with times that are known, that leaves the fewest
late. A refusal at once also costs a client less than one when its deadline is near.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf

from pliant.serve.batching.plan_batch import QueuedRequest

SPARE = 1.5
"""Planned time of a request relative to its expected time. Half of the requests take longer than expected,
and batches can form only where there is time to spare: simulated at 1.5 times the capacity, 5 % more requests
are in time than with 1.0, and at 0.9 times the capacity as many.
"""
_MOST_PLANS = 64
"""Maximum number of times that all earlier requests are planned again without one of them."""


def excess(waiting: Sequence[QueuedRequest], now_s: float, free_s: Sequence[float], pace: float) -> list[int]:
    """Indices of the requests to refuse: without them, all others start in time.

    `free_s` are the seconds until each worker is free; a request is expected to take `pace` times its time
    alone on one of them. Among requests that take equally long, the last is refused. Requests without a
    deadline and those with best effort are never refused here, nor those whose bound alone is late already.
    If the times of a long queue have grown, the first refusals replace longer requests; after these, a
    request that would be late is refused itself, since planning thousands again would block the event loop.
    """
    is_due = [one.due_s < inf and not one.best_effort and one.is_in_time(now_s) for one in waiting]
    if not any(is_due):
        return []
    planned: list[int] = []
    refused: list[int] = []
    n_plans, free = 0, _free_after((), now_s, free_s, pace)
    for i in sorted(range(len(waiting)), key=lambda i: waiting[i].start_s(now_s)):
        planned.append(i)
        while is_due[i] and not waiting[i].is_in_time(free[0]):
            due = [k for k in planned if is_due[k]] if n_plans < _MOST_PLANS else [i]
            longest = max(due, key=lambda k: (waiting[k].alone.median_s, k))
            planned.remove(longest)
            refused.append(longest)
            if longest == i:
                break
            n_plans += 1
            free = _free_after([waiting[k] for k in planned[:-1]], now_s, free_s, pace)
        else:
            heapreplace(free, free[0] + SPARE * pace * waiting[i].alone.median_s)
    return refused


def _free_after(
    planned: Sequence[QueuedRequest], now_s: float, free_s: Sequence[float], pace: float
) -> list[float]:
    """When each worker is free after the `planned` requests, the first one first."""
    free = [now_s + seconds for seconds in free_s]
    heapify(free)
    for one in planned:
        heapreplace(free, free[0] + SPARE * pace * one.alone.median_s)
    return free
