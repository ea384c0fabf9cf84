"""Who was left out, and when it is tried again: times are numbers."""

import pytest

from pliant.cluster.watch.retry_backoff import FIRST_S, LAST_S, RetryBackoff


@pytest.mark.parametrize("every_s", [1.0, FIRST_S, 20 * FIRST_S])
def test_who_is_heard_of_in_every_run_is_never_due(every_s: float) -> None:
    """However seldom there is a run."""
    retries = RetryBackoff()
    for k in range(100):
        retries.heard({"a"}, every_s * k)
        assert retries.due({"a"}) == frozenset()


def test_who_is_left_out_is_due_ever_later_and_for_ever() -> None:
    """A device that is slow for good costs a run now and then, ever more rarely."""
    retries, now_s, waits = RetryBackoff(), 0.0, []
    retries.heard({"a", "p"}, now_s)
    since_s = now_s
    while len(waits) < 9:
        now_s += 1.0
        retries.heard({"p"}, now_s)
        if retries.due({"a", "p"}):
            waits.append(now_s - since_s)
            since_s = now_s
            retries.heard({"a"}, now_s)  # it is tried, and left out again at once
    assert waits == [min(FIRST_S * 2.0**k, LAST_S) for k in range(9)]


def test_who_stayed_after_it_was_tried_starts_anew() -> None:
    """What happened to it is over."""
    retries = RetryBackoff()
    retries.heard({"p"}, 0.0)
    assert retries.due({"a"}) == frozenset()
    retries.heard({"p"}, FIRST_S)
    assert retries.due({"a"}) == {"a"}
    for k in range(20):
        retries.heard({"a"}, FIRST_S + 10.0 * k)
    left_s = FIRST_S + 190.0
    retries.heard({"p"}, left_s + FIRST_S - 1.0)
    assert retries.due({"a"}) == frozenset()
    retries.heard((), left_s + FIRST_S)
    assert retries.due({"a"}) == {"a"}


def test_nobody_is_due_by_another_s_silence() -> None:
    """Each for itself; a name that was never heard of waits from when it is first asked for."""
    retries = RetryBackoff()
    assert retries.due({"a"}) == frozenset()
    retries.heard({"a"}, 0.0)
    retries.heard((), FIRST_S)
    assert retries.due({"a", "b"}) == {"a"}
    retries.heard((), 2 * FIRST_S)
    assert retries.due({"a", "b"}) == {"b"}
