"""Who was left out, and when it is tried again: times are numbers."""

from pliant.cluster.retry import FIRST_S, LAST_S, Retries


def test_who_is_heard_of_is_never_due() -> None:
    """Runs tell of it."""
    retries = Retries()
    for k in range(100):
        retries.heard({"a"}, 10.0 * k)
        assert retries.due({"a"}, 10.0 * k + 5.0) == frozenset()


def test_who_is_left_out_is_due_ever_later_and_for_ever() -> None:
    """A device that is slow for good costs a run now and then, ever more rarely."""
    retries, now_s, waits = Retries(), 0.0, []
    retries.heard({"a"}, now_s)
    since_s = now_s
    while len(waits) < 9:
        now_s += 1.0
        if retries.due({"a"}, now_s):
            waits.append(now_s - since_s)
            since_s = now_s
            retries.heard({"a"}, now_s)  # it is tried, and left out again at once
    assert waits == [min(FIRST_S * 2.0**k, LAST_S) for k in range(9)]


def test_who_stayed_after_it_was_tried_starts_anew() -> None:
    """What happened to it is over."""
    retries = Retries()
    assert retries.due({"a"}, 0.0) == frozenset()
    assert retries.due({"a"}, FIRST_S) == {"a"}
    for k in range(20):
        retries.heard({"a"}, FIRST_S + 10.0 * k)
    left_s = FIRST_S + 190.0
    assert retries.due({"a"}, left_s + FIRST_S - 1.0) == frozenset()
    assert retries.due({"a"}, left_s + FIRST_S) == {"a"}


def test_nobody_is_due_by_another_s_silence() -> None:
    """Each for itself; a name that was never heard of waits from when it is first asked for."""
    retries = Retries()
    retries.heard({"a"}, 0.0)
    assert retries.due({"a", "b"}, FIRST_S) == {"a"}
    assert retries.due({"a", "b"}, 2 * FIRST_S) == {"b"}
