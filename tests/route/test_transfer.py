"""Transfer estimates against a simulated link whose two ends have clocks of their own."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.link import Link
from pliant.route.upstream.transfer import SizeLine, TransferSettings, TransferTimes

PRIOR = Link(0.5, 250e3)


@dataclass(frozen=True, slots=True)
class Clock:
    """Shows `offset_s` at the start and gains `drift` seconds a second."""

    offset_s: float = 0.0
    drift: float = 0.0

    def at(self, s: float) -> float:
        return self.offset_s + s * (1.0 + self.drift)


def exchange(here: Clock, there: Clock, start_s: float, trip_s: float, spent_s: float) -> tuple[float, float]:
    """(away_s, spent_s), as the two ends' time stamps give them."""
    arrived_s = start_s + trip_s / 3.0  # ways need not be equally long
    away_s = here.at(start_s + trip_s + spent_s) - here.at(start_s)
    return away_s, there.at(arrived_s + spent_s) - there.at(arrived_s)


@given(st.floats(-1e6, 1e6), st.floats(-1e-4, 1e-4), st.floats(-1e-4, 1e-4), st.floats(0.01, 0.5))
def test_clocks_need_not_agree(offset_s: float, drift_here: float, drift_there: float, rtt_s: float) -> None:
    """Any offset, and 100 parts per million of drift on both ends, over answers of up to a second."""
    here, there = Clock(7.0, drift_here), Clock(offset_s, drift_there)
    times = TransferTimes(PRIOR, TransferSettings())
    for i in range(20):
        away_s, spent_s = exchange(here, there, 5.0 * i, rtt_s, 0.05 * i)
        times.record_answer(10, 0, 0, away_s, spent_s, 5.0 * i)
    # 2e-4 of a second spent, 0.5 % within which an estimate stays what it was, rounding of clocks at 1e6 s
    assert times.rtt_s == pytest.approx(rtt_s, rel=6e-3, abs=2.2e-4)


def test_the_paper_keeps_the_last_sample() -> None:
    """The baseline: one spike is believed."""
    times = TransferTimes(PRIOR, TransferSettings(is_robust=False))
    for took_s in (0.1, 0.1, 0.9):
        times.record_answer(10, 0, 0, took_s, 0.0, 0.0)
    assert times.rtt_s == 0.9


def test_a_spike_decides_nothing() -> None:
    """Its cost is averaged in afterwards; before the first sample, the prior holds."""
    times = TransferTimes(PRIOR, TransferSettings())
    assert times.fixed_s == 0.5
    for at, took_s in enumerate((0.1, 0.1, 0.9, 0.1)):
        times.record_answer(10, 0, 0, took_s, 0.0, float(at))
        assert times.rtt_s == pytest.approx(0.1)
    assert times.fixed_s == pytest.approx(0.1 + 0.8 / 64)


def test_a_spike_after_a_pause_is_undone_by_the_next_sample() -> None:
    """What one late sample said, one sample takes back."""
    times = TransferTimes(PRIOR, TransferSettings())
    times.record_ping(0.1, 0.0, 0.0)
    assert times.record_ping(0.9, 0.0, 100.0)
    assert times.rtt_s == pytest.approx(0.9)
    times.record_ping(0.1, 0.0, 101.0)
    assert times.rtt_s == pytest.approx(0.1)


def test_a_lasting_change_is_believed_with_the_second_sample() -> None:
    """The price of ignoring spikes."""
    times = TransferTimes(PRIOR, TransferSettings())
    for at, took_s in enumerate((0.1, 0.1, 0.1, 0.3, 0.3)):
        times.record_answer(10, 0, 0, took_s, 0.0, float(at))
    assert times.rtt_s == pytest.approx(0.3)


def test_a_change_surprises_and_the_usual_does_not() -> None:
    """A surprise is what makes a router ask again soon; one trip that is off may be a spike."""
    rng = np.random.default_rng(0)
    times = TransferTimes(PRIOR, TransferSettings())
    usual = [
        times.record_answer(10, 0, 0, 0.1 * float(rng.normal(1, 0.05)), 0.0, float(at)) for at in range(50)
    ]
    assert not any(usual)
    assert not times.record_answer(10, 0, 0, 0.2, 0.0, 51.0)
    assert times.record_answer(10, 0, 0, 0.2, 0.0, 51.5)


@pytest.mark.parametrize("spikes", [0.0, 0.1])
def test_bandwidth_is_learned_where_sizes_differ(spikes: float) -> None:
    """Images over a link whose prior is four times too good, and every tenth trip a spike."""
    rng = np.random.default_rng(1)
    times = TransferTimes(Link(0.05, 1e6), TransferSettings())
    for at in range(128):
        n_bytes = int(rng.integers(1_000, 200_000))
        took_s = 0.05 * float(rng.normal(1, 0.05)) + n_bytes / 250e3 + 0.5 * (rng.random() < spikes)
        times.record_answer(n_bytes, n_bytes, 0, took_s + 0.02, 0.02, float(at))
    assert times.bandwidth_Bps == pytest.approx(250e3, rel=0.03)
    assert times.fixed_s + times.per_item_s * 100_000 == pytest.approx(0.45 + 0.5 * spikes, rel=0.15)


@pytest.mark.parametrize("seed", range(8))
def test_bandwidth_stays_the_priors_where_sizes_say_nothing(seed: int) -> None:
    """Sentences of a hundred bytes: noise of the round trip is no bandwidth (CRIME 3.1).

    A slope found in noise once would end all sending, and with it all that could correct it.
    """
    rng = np.random.default_rng(seed)
    times = TransferTimes(PRIOR, TransferSettings())
    for at in range(2000):
        n = int(rng.integers(4, 40))
        times.record_answer(n, 6 * n, 8, 0.1 * float(rng.lognormal(0, 0.15)), 0.0, float(at))
    assert times.bandwidth_Bps == 250e3
    assert times.per_item_s == pytest.approx(6 / 250e3, rel=0.2)


def test_the_floor_is_the_best_of_the_last_half_hour_or_hour() -> None:
    """What a link could be again."""
    times = TransferTimes(PRIOR, TransferSettings())
    times.record_ping(0.05, 0.0, 0.0)
    for at in range(1, 30):
        times.record_ping(0.2, 0.0, 60.0 * at)
    assert times.floor_s == pytest.approx(0.05)
    for at in range(30, 130):
        times.record_ping(0.2, 0.0, 60.0 * at)
    assert times.floor_s == pytest.approx(0.2)


def test_a_peer_that_claims_to_have_spent_more_than_it_was_asked_for_gains_nothing() -> None:
    """No trip is shorter than none."""
    times = TransferTimes(PRIOR, TransferSettings())
    times.record_answer(10, 100, 10, 0.1, 5.0, 0.0)
    assert times.rtt_s == 0.0
    assert times.fixed_s >= 0.0


@given(st.lists(st.integers(0, 300), min_size=2, max_size=60), st.integers(0, 500), st.integers(0, 20))
def test_sizes_are_a_line_through_what_was_sent(lengths: list[int], fixed: int, per_item: int) -> None:
    """S(n) of equation 2, exact where it is a line."""
    sizes = SizeLine()
    for n in lengths:
        sizes.add(n, fixed + per_item * n)
    for n in lengths:
        assert sizes.at(n) == pytest.approx(fixed + per_item * n, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("bad", [{"fresh_s": float("nan")}, {"fresh_s": -1.0}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    """Before a node starts."""
    with pytest.raises(RouteError):
        TransferSettings(**bad)  # type: ignore[arg-type]


def test_sizes_that_follow_the_round_trip_are_not_its_cause() -> None:
    """While a link is slow only long inputs are sent there; that says nothing about its bandwidth."""
    times = TransferTimes(Link(0.1, 250e3), TransferSettings())
    for i in range(256):
        is_slow = i // 32 % 2 == 1
        n = (40 if is_slow else 20) + i * 7 % 10
        rtt_s = 0.2 if is_slow else 0.1
        times.record_answer(n, 50 + 2 * n, 32, rtt_s + (82 + 2 * n) / 250e3, 0.0, float(i))
    assert times.bandwidth_Bps == pytest.approx(250e3)
