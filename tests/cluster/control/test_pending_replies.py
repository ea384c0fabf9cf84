"""Answers in time, too late, and from nobody."""

import time
from threading import Condition

from pliant.cluster.control.pending_replies import PendingReplies


def test_answers_that_nobody_takes_are_let_go_in_time() -> None:
    """A worker that always answers late must not fill the primary's memory."""
    replies: PendingReplies[str] = PendingReplies(Condition(), time.perf_counter)
    for number in range(10_000):
        replies.put(number, "a", f"{number}")
    assert replies.take(9_999, ["a"], lambda name: True, 0.0) == {"a": "9999"}
    assert replies.peek(0) == ()
    assert sum(len(replies.peek(number)) for number in range(10_000)) < 1_000


def test_who_is_not_awaited_is_not_waited_for() -> None:
    """One that left."""
    replies: PendingReplies[str] = PendingReplies(Condition(), time.perf_counter)
    replies.put(1, "a", "yes")
    assert replies.take(1, ["a", "b"], lambda name: name != "b", 3600.0) == {"a": "yes"}
    assert replies.take(1, [], lambda name: True, 3600.0) == {}
