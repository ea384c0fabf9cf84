"""Links as time series: lookups, RIPE's two forms, windows by rule."""

import numpy as np
import pytest

from pliant.errors import RouteError
from pliant.ir.link import Link
from research.series import LinkSeries, Trace, bluetooth, constant, read_ripe, steps, windows

FAST, SLOW = Link(0.1, 250e3), Link(0.3, 250e3)
HEAD = "epoch;rtt;cp\n"


def test_a_series_holds_until_its_next_start() -> None:
    """What is read between two rows is the earlier one."""
    series = LinkSeries((0.0, 10.0, 20.0), (FAST, None, SLOW))
    assert [series.at(t, 0.0) for t in (0.0, 9.9, 10.0, 19.9, 20.0, 1e6)] == [
        FAST,
        FAST,
        None,
        None,
        SLOW,
        SLOW,
    ]


def test_a_period_starts_the_series_again() -> None:
    """A run may take longer than a window of a trace."""
    series = LinkSeries((0.0, 10.0), (FAST, SLOW), period_s=20.0)
    assert [series.at(t, 0.0) for t in (5.0, 15.0, 25.0, 35.0)] == [FAST, SLOW, FAST, SLOW]


def test_steps_of_inputs_change_at_equal_parts() -> None:
    """CRIME's artificial profile: thirds of the process, however long it takes."""
    series = steps([FAST, None, SLOW], "inputs")
    assert [series.at(1e9, part) for part in (0.0, 0.33, 0.34, 0.66, 0.67)] == [FAST, FAST, None, None, SLOW]
    assert steps([FAST, SLOW], "seconds", 5.0).at(5.0, 0.0) == SLOW


def test_a_link_that_is_down_is_back_at_its_next_row() -> None:
    """Who waits for it waits that long, over the period's end too."""
    series = LinkSeries((0.0, 10.0, 20.0), (None, FAST, None), period_s=30.0)
    assert [series.back_at(t, 0.0) for t in (0.0, 12.0, 25.0)] == [10.0, 12.0, 40.0]
    assert LinkSeries((0.0,), (None,)).back_at(3.0, 0.0) is None
    assert steps([None, FAST], "inputs").back_at(3.0, 0.1) is None


@pytest.mark.parametrize(
    ("starts", "links", "options"),
    [
        ((), (), {}),
        ((0.0,), (FAST, SLOW), {}),
        ((0.0, 0.0), (FAST, SLOW), {}),
        ((0.0, 5.0), (FAST, SLOW), {"period_s": 5.0}),
        ((0.0, 0.5), (FAST, SLOW), {"period_s": 1.0, "of": "inputs"}),
    ],
)
def test_what_is_no_series_is_refused(
    starts: tuple[float, ...], links: tuple[Link, ...], options: dict
) -> None:
    """A lookup never meets a row that makes no sense."""
    with pytest.raises(RouteError):
        LinkSeries(starts, links, **options)


def test_both_forms_of_dates_are_read_and_lost_probes_are_none() -> None:
    """The 40 series have one or the other; RTT <= 0 is a lost probe."""
    iso = read_ripe(HEAD + "2016-11-25 13:31:49;166.9;0\n2016-11-25 13:35:52;-1;0\n", "iso")
    other = read_ripe(HEAD + "25/11/2016 13:31;166.9;0\n25/11/2016 13:35;0.0;1\n", "other")
    assert iso.times_s == (0.0, 243.0)
    assert other.times_s == (0.0, 240.0)
    assert iso.rtts_s == other.rtts_s == (pytest.approx(0.1669), None)
    assert other.begins.month == 11


@pytest.mark.parametrize(
    "row", ["yesterday;1.0;0", "2016-11-25 13:31:49", "2016-11-25 13:31:49;nan;0", "", "a;b;c"]
)
def test_a_row_that_cannot_be_read_is_named(row: str) -> None:
    """With its line; a file without rows is none."""
    with pytest.raises(RouteError, match="bad"):
        read_ripe(HEAD + row, "bad")


def trace(rtts_ms: list[float], every_s: float = 240.0) -> Trace:
    from datetime import datetime

    times = tuple(i * every_s for i in range(len(rtts_ms)))
    rtts = tuple(r / 1e3 if r > 0 else None for r in rtts_ms)
    return Trace("made", datetime(2016, 11, 25), times, rtts)


def test_windows_hold_no_lost_probe_and_nothing_outside_the_range() -> None:
    """The rule by which the benches pick theirs, told in seconds, one window after the other."""
    kept = trace([150, 160, 170, 50, 150, 160, 0, 150, 150, 150, 200, 210, 150])
    found = windows(kept, 720.0, 0.1, 0.245)
    assert [(w.first, round(w.spread_s, 6)) for w in found] == [(0, 0.02), (9, 0.06)]
    assert windows(trace([150] * 9, every_s=900.0), 2700.0, 0.1, 0.245) == []
    series = found[1].series(250e3)
    assert series.period_s == 720.0
    assert series.at(250.0, 0.0) == Link(0.2, 250e3)
    assert kept.window(5, 720.0, 250e3).at(300.0, 0.0) is None


def test_a_bluetooth_like_link_has_the_mean_it_was_given_and_repeats_by_seed() -> None:
    """Its round trips are what is free in the reconstruction; its noise is the same in every run."""
    series = bluetooth(0.06, 600.0, seed=3)
    rtts = np.array([link.latency_s for link in series.links if link is not None])
    assert rtts.mean() == pytest.approx(0.06)
    assert 0.1 < rtts.std() / rtts.mean() < 0.5
    assert rtts.min() > 0.02
    assert series == bluetooth(0.06, 600.0, seed=3) != bluetooth(0.06, 600.0, seed=4)
    assert constant(FAST).at(7.0, 0.5) is FAST
