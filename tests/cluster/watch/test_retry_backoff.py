"""Who was left out, and when it is tried again: times are numbers."""

import pytest

from pliant.cluster.watch.retry_backoff import FIRST_S, LAST_S, RetryBackoff


@pytest.mark.parametrize("every_s", [1.0, FIRST_S, 20 * FIRST_S])
def test_who_is_heard_of_in_every_run_is_never_due(every_s: float) -> None:
    """However seldom there is a run."""
    retries = RetryBackoff()
    for k in range(100):
        retries.record_reports({"a"}, every_s * k)
        assert retries.take_due({"a"}) == frozenset()


def test_who_is_left_out_is_due_ever_later_and_for_ever() -> None:
    """A device that is slow for good costs a run now and then, ever more rarely."""
    retries, now_s, waits = RetryBackoff(), 0.0, []
    retries.record_reports({"a", "p"}, now_s)
    since_s = now_s
    while len(waits) < 9:
        now_s += 1.0
        retries.record_reports({"p"}, now_s)
        if retries.take_due({"a", "p"}):
            waits.append(now_s - since_s)
            since_s = now_s
            retries.record_reports({"a"}, now_s)  # it is tried, and left out again at once
    assert waits == [min(FIRST_S * 2.0**k, LAST_S) for k in range(9)]


def test_who_stayed_after_it_was_tried_starts_anew() -> None:
    """What happened to it is over."""
    retries = RetryBackoff()
    retries.record_reports({"p"}, 0.0)
    assert retries.take_due({"a"}) == frozenset()
    retries.record_reports({"p"}, FIRST_S)
    assert retries.take_due({"a"}) == {"a"}
    for k in range(20):
        retries.record_reports({"a"}, FIRST_S + 10.0 * k)
    left_s = FIRST_S + 190.0
    retries.record_reports({"p"}, left_s + FIRST_S - 1.0)
    assert retries.take_due({"a"}) == frozenset()
    retries.record_reports((), left_s + FIRST_S)
    assert retries.take_due({"a"}) == {"a"}


def test_nobody_is_due_by_another_s_silence() -> None:
    """Each for itself; a name that was never heard of waits from when it is first asked for."""
    retries = RetryBackoff()
    assert retries.take_due({"a"}) == frozenset()
    retries.record_reports({"a"}, 0.0)
    retries.record_reports((), FIRST_S)
    assert retries.take_due({"a", "b"}) == {"a"}
    retries.record_reports((), 2 * FIRST_S)
    assert retries.take_due({"a", "b"}) == {"b"}
