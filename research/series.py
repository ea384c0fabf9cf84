"""Links as time series: the properties of a link at each time of a run.

RIPE Atlas series are CSV, `epoch;rtt;cp`, in milliseconds, about one row every four minutes, with dates in
one of two formats; a round trip <= 0 is a lost probe, and the link is down until the next row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Literal

import numpy as np

from pliant.errors import RouteError
from pliant.ir.link import Link

_DATES = (datetime.fromisoformat, lambda text: datetime.strptime(text, "%d/%m/%Y %H:%M"))
_BLE_INTERVAL_S = 7.5e-3


@dataclass(frozen=True, slots=True)
class LinkSeries:
    """`links[i]` from `starts[i]` on; None is a link that is down. The first link also applies before its
    start.

    Starts are seconds, or with `of` "inputs" fractions of a run's inputs. Seconds repeat after `period_s`,
    since a run may take longer than the series.
    """

    starts: tuple[float, ...]
    links: tuple[Link | None, ...]
    period_s: float | None = None
    of: Literal["seconds", "inputs"] = "seconds"

    def __post_init__(self) -> None:
        is_rising = all(a < b for a, b in zip(self.starts, self.starts[1:], strict=False))
        if not self.starts or len(self.starts) != len(self.links) or not is_rising:
            raise RouteError(
                f"{len(self.links)} links from {len(self.starts)} moments are no series: give as many of "
                "both, one at least, moments rising."
            )
        if self.period_s is not None and not (self.of == "seconds" and self.period_s > self.starts[-1]):
            raise RouteError(
                f"a series up to {self.starts[-1]} of {self.of} cannot repeat after {self.period_s} s: only "
                "seconds repeat, after the last start."
            )

    def at(self, now_s: float, part: float) -> Link | None:
        """The link at `now_s` seconds of the run, with `part` of its inputs answered."""
        x = part if self.of == "inputs" else now_s if self.period_s is None else now_s % self.period_s
        return self.links[max(bisect_right(self.starts, x) - 1, 0)]

    def back_at(self, now_s: float, part: float) -> float | None:
        """The first time >= `now_s` with the link up; None if there is none without further inputs."""
        if self.at(now_s, part) is not None:
            return now_s
        if self.of == "inputs":
            return None
        turn = 0.0 if self.period_s is None else now_s - now_s % self.period_s
        for again_s in (turn, turn + (self.period_s or 0.0)):
            for start, link in zip(self.starts, self.links, strict=True):
                if link is not None and start + again_s >= now_s:
                    return start + again_s
        return None


def constant(link: Link) -> LinkSeries:
    """A link that does not change."""
    return LinkSeries((0.0,), (link,))


def steps(links: Sequence[Link | None], of: Literal["seconds", "inputs"], every: float = 0.0) -> LinkSeries:
    """`links` in turn, for `every` seconds each; with "inputs", each for an equal part (CRIME 5.2.2's
    thirds).
    """
    width = every if of == "seconds" else 1.0 / max(len(links), 1)
    return LinkSeries(tuple(i * width for i in range(len(links))), tuple(links), of=of)


def bluetooth(
    mean_rtt_s: float, seconds: float, seed: int, bandwidth_Bps: float = 87_500.0, every_s: float = 1.0
) -> LinkSeries:
    """A model of Bluetooth Low Energy: round trips of whole connection intervals of 7.5 ms, with mean
    `mean_rtt_s`.

    Every `every_s` the wait for the next interval is drawn anew; occasionally, interference for a few rows
    adds up to four intervals of retransmission. 87,500 B/s (0.7 Mbit/s) is the throughput of applications
    with long packets.
    """
    random = np.random.default_rng(seed)
    n = max(round(seconds / every_s), 1)
    usual = mean_rtt_s / _BLE_INTERVAL_S
    waits = random.poisson(max(usual - 1.3, 0.1), n) * 0.5 + 0.5 * max(usual - 1.3, 0.1) + 1.0
    lost = np.zeros(n)
    for start in np.flatnonzero(random.random(n) < 0.02):
        lost[start : start + int(random.integers(1, 8))] = random.integers(1, 5)
    rtts = np.round(waits + lost) * _BLE_INTERVAL_S
    rtts *= mean_rtt_s / rtts.mean()
    links = tuple(Link(float(rtt), bandwidth_Bps) for rtt in rtts)
    return LinkSeries(tuple(i * every_s for i in range(n)), links, period_s=n * every_s)


@dataclass(frozen=True, slots=True)
class Trace:
    """Round trips measured at `times_s` (ascending from 0); None for a lost probe."""

    name: str
    begins: datetime
    times_s: tuple[float, ...]
    rtts_s: tuple[float | None, ...]

    def window(self, first: int, seconds: float, bandwidth_Bps: float) -> LinkSeries:
        """The series from row `first` on for `seconds`, repeated."""
        rows = range(first, bisect_left(self.times_s, self.times_s[first] + seconds))
        links = [None if (rtt := self.rtts_s[i]) is None else Link(rtt, bandwidth_Bps) for i in rows]
        starts = tuple(self.times_s[i] - self.times_s[first] for i in rows)
        return LinkSeries(starts, tuple(links), period_s=seconds)


def read_ripe(text: str, name: str) -> Trace:
    """A RIPE Atlas series. Raises RouteError naming the line that cannot be read."""
    stamps: list[datetime] = []
    rtts: list[float | None] = []
    for number, line in enumerate(text.splitlines()[1:], 2):
        if not line.strip():
            continue
        moment, rtt_ms = _row(line, f"{name}, line {number}")
        if stamps and moment <= stamps[-1]:  # dates without seconds may coincide
            continue
        stamps.append(moment)
        rtts.append(rtt_ms / 1e3 if rtt_ms > 0 else None)
    if not stamps:
        raise RouteError(f"{name} has no row; a series is `epoch;rtt;cp`, a header first.")
    times_s = tuple((moment - stamps[0]).total_seconds() for moment in stamps)
    return Trace(name, stamps[0], times_s, tuple(rtts))


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of a trace from `first` on for `seconds`, and the spread of their round trips."""

    trace: Trace
    first: int
    seconds: float
    spread_s: float

    def series(self, bandwidth_Bps: float) -> LinkSeries:
        return self.trace.window(self.first, self.seconds, bandwidth_Bps)


def windows(
    trace: Trace, seconds: float, low_s: float, high_s: float, most_gap_s: float = 600.0
) -> list[Window]:
    """All consecutive, disjoint windows of `seconds` whose round trips are all within `low_s`..`high_s`.

    They have no lost probe, and no gap between rows of more than `most_gap_s`.
    """
    found = []
    first = 0
    while first < len(trace.times_s):
        end = bisect_left(trace.times_s, trace.times_s[first] + seconds)
        if end >= len(trace.times_s):
            break
        rtts = trace.rtts_s[first:end]
        gaps = [
            b - a for a, b in zip(trace.times_s[first:end], trace.times_s[first + 1 : end + 1], strict=True)
        ]
        if max(gaps) <= most_gap_s and all(r is not None and low_s <= r <= high_s for r in rtts):
            kept = [r for r in rtts if r is not None]
            found.append(Window(trace, first, seconds, max(kept) - min(kept)))
        first = end
    return found


def _row(line: str, where: str) -> tuple[datetime, float]:
    cells = line.split(";")
    for form in _DATES:
        try:
            moment, rtt_ms = form(cells[0]), float(cells[1])
        except (ValueError, IndexError):
            continue
        if isfinite(rtt_ms):
            return moment, rtt_ms
    raise RouteError(
        f"{where} is {line[:60]!r}; expected a date (2016-11-25 13:19:31 or 25/11/2016 13:19);ms;0."
    )
