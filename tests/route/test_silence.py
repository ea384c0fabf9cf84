"""Upstreams whose answers are overdue, on times made up."""

from pliant.route.upstream.silence import SilenceDetector


def test_an_upstream_is_silent_from_beyond_its_bound_until_it_is_heard() -> None:
    """Within the bound an answer is late for some, and nothing is wrong."""
    silence = SilenceDetector()
    silence.record_overdue(0.5, 1.0, 10.0)
    assert not silence.is_silent
    silence.record_overdue(1.5, 1.0, 11.0)
    assert silence.is_silent
    silence.record_contact(12.0)
    assert not silence.is_silent


def test_what_was_away_during_silence_was_held_up() -> None:
    """TCP sends once more what a gap of the link swallowed, seconds later."""
    silence = SilenceDetector()
    assert not silence.was_silent_during(5.0, 10.0)
    silence.record_overdue(1.5, 1.0, 11.0)
    assert silence.was_silent_during(0.1, 12.0)
    silence.record_contact(12.0)
    assert silence.was_silent_during(0.6, 12.5)
    assert not silence.was_silent_during(0.5, 12.5)


def test_the_second_overdue_answer_without_one_between_counts_until_it_is_long_ago() -> None:
    """The first may have met a gap; one that hangs answers pings."""
    silence = SilenceDetector()
    assert not silence.record_overdue(2.0, 1.0, 1.0)
    silence.record_contact(1.5)
    assert silence.record_overdue(2.0, 1.0, 2.0)
    assert not silence.is_forgiven(30.0, 60.0)
    assert silence.is_forgiven(63.0, 60.0)
    assert not silence.is_forgiven(64.0, 60.0), "it is said once"
    silence.record_answer()
    assert not silence.record_overdue(2.0, 1.0, 70.0)


def test_a_single_overdue_answer_long_ago_leaves_what_was_learned_and_no_doubt() -> None:
    """It raised nothing: what all answers before it showed of the way was forgotten all the same."""
    silence = SilenceDetector()
    silence.record_overdue(2.0, 1.0, 1.0)
    assert silence.least_bound == 2.0
    assert not silence.is_forgiven(63.0, 60.0)
    assert silence.least_bound == 1.0
