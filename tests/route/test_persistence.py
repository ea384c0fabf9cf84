"""Links that change at once, after a second, and hardly ever: what the last trip says about the next."""

import numpy as np
import pytest

from pliant.ir.link import Link
from pliant.route.upstream.persistence import BOUNDS_S, Persistence, next_age_s
from pliant.route.upstream.transfer import TransferSettings, TransferTimes


def learned(lasts_s: float, gap_s: float, count: int = 400) -> Persistence:
    """A link with another distance from the usual every `lasts_s`, asked about every `gap_s`."""
    random = np.random.default_rng(0)
    off = random.normal(0.0, 0.01, count)
    gaps = gap_s * random.uniform(0.5, 1.5, count)
    now_s = np.cumsum(gaps)
    states = off[(now_s // lasts_s).astype(int) % count].tolist()
    made = Persistence()
    for before, after, gap in zip(states, states[1:], gaps[1:].tolist(), strict=False):
        made.observe(before, after, gap)
    return made


def test_nothing_is_said_before_anything_was_seen() -> None:
    """A new link is its average."""
    assert [Persistence().at(age) for age in (0.0, 1.0, 1000.0)] == [0.0] * 3


def test_what_lasts_is_believed_and_what_does_not_is_not() -> None:
    """Minutes against packets; ages not met so far are taken as the last one below."""
    assert learned(300.0, 0.2).at(0.2) > 0.9
    assert learned(300.0, 0.2).at(100.0) > 0.8
    assert abs(learned(0.01, 0.2).at(0.2)) < 0.4


def test_a_link_that_changes_every_second_is_believed_for_less() -> None:
    """Bluetooth: within a tenth of a second much is the same, after two nothing."""
    brief, late = learned(1.0, 0.1).at(0.1), learned(1.0, 2.5).at(2.5)
    assert brief > 0.7
    assert late < 0.4


def test_ages_end_where_the_next_begin() -> None:
    """Between these no estimate changes by time alone."""
    assert next_age_s(0.0) == BOUNDS_S[0]
    assert next_age_s(BOUNDS_S[0]) == BOUNDS_S[1]
    assert next_age_s(BOUNDS_S[-1]) == float("inf")


def test_an_estimate_returns_to_the_usual_with_time() -> None:
    """What a link was a minute ago is not what it is, where it changes every second."""
    random = np.random.default_rng(1)
    times = TransferTimes(Link(0.1, 250e3), TransferSettings())
    now_s = 0.0
    for rtt_s in random.uniform(0.09, 0.11, 400).tolist():
        for _ in range(5):
            times.record_ping(rtt_s, 0.0, now_s)
            now_s += 0.2
        now_s += float(random.integers(0, 3))
    for _ in range(3):
        times.record_ping(0.112, 0.0, now_s)
        now_s += 0.1
    assert times.rtt_s > 0.103
    assert times.changes_at_s < now_s + 0.2
    times.update_expected(now_s + 60.0)
    assert times.rtt_s == pytest.approx(0.1, abs=0.004)


def test_states_that_never_last_are_not_taken_for_another_link() -> None:
    """A second's interference now and then, over and over; a change that stays for long is one even so."""
    times = TransferTimes(Link(0.1, 250e3), TransferSettings())
    now_s = 0.0
    for _ in range(12):
        for rtt_s in [0.1] * 150 + [0.3] * 8:
            times.record_ping(rtt_s, 0.0, now_s)
            now_s += 0.1
    times.update_expected(now_s + 60.0)
    assert times.rtt_s == pytest.approx(0.1, abs=0.02)
    for _ in range(200):
        times.record_ping(0.3, 0.0, now_s)
        now_s += 0.1
    times.update_expected(now_s + 60.0)
    assert times.rtt_s == pytest.approx(0.3, abs=0.02)
