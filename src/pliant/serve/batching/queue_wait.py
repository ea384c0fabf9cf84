"""The expected wait of a new request in a queue."""

from collections.abc import Collection

import numpy as np

from pliant.serve.batching.plan_batch import QueuedRequest
from pliant.serve.batching.queue_times import QueueTimes


def wait_s(
    queue: QueueTimes,
    new: QueuedRequest,
    now_s: float,
    busy_s: float,
    pace: float,
    without: Collection[int] = (),
) -> float:
    """Expected wait of `new`: behind requests with less slack, while all can be in time.

    Running work takes `busy_s` more, waiting requests but those in the slots `without` take `pace` times
    their time alone. If some would be late, `new` waits for shorter requests with a deadline; without a
    deadline, it waits for all.
    """
    begin_s = now_s + busy_s
    plan = queue.ordered(now_s, begin_s, without)
    seconds, is_bound = pace * plan.seconds, plan.is_bound
    ends_s = np.cumsum(seconds)
    n_before = int(np.searchsorted(plan.start_s, new.start_s(now_s), side="right"))
    before_s = float(ends_s[n_before - 1]) if n_before else 0.0
    begins_s = begin_s + ends_s - seconds
    begins_s[n_before:] += pace * new.alone.median_s
    is_new_bound = new.due_s < np.inf and new.is_in_time(begin_s)
    is_late = is_new_bound and not new.is_in_time(begin_s + before_s)
    if not is_late and not np.any(is_bound & (begins_s > plan.latest_s)):
        return busy_s + before_s
    if not is_new_bound:
        return busy_s + float(seconds.sum())
    is_before = np.arange(len(seconds)) < n_before
    is_first = np.where(is_bound, plan.seconds <= new.alone.median_s, is_before)
    return busy_s + float(seconds[is_first].sum())
