"""The time of a transfer to a successor and back, T_rtt + S(n)/B (CRIME eq. 2, 4.3.1).

Clocks are not compared: the network time is the time away, by this device's clock, minus the time that the
successor spent, by its own clock. Any offset between the clocks cancels out; a drift of 100 parts per million
shifts the result by that fraction of the time spent.
"""

from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.link import Link
from pliant.route.upstream.persistence import Persistence, next_age_s

_STEADY = 5e-3
"""Relative change of a round trip below which the estimate is kept: no choice loses more by it."""
_SURPRISE = 0.15
"""A trip that deviates by this fraction, and by four times the usual, is a spike or a change of the link."""
_AVERAGED = 64
_DEVIATIONS = 16
_STATES = 4
_BRIEF = 0.4
_NEVER = float("-inf")
_SPIKES = 64
_PAIRS_EVERY = 64
_SIZES_KEEP = 0.99
_FLOOR_S = 1800.0


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Whether round trips are averaged, with spikes told from changes; else the last one counts (the paper).

    A sample more than `fresh_s` after the previous one is taken as it is, because much may have changed.
    """

    is_robust: bool = True
    fresh_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.fresh_s >= 0:
            raise RouteError(f"samples cannot be fresh for {self.fresh_s} s: give 0 or more.")


class TransferTimes:
    """Transfer times to one successor: `fixed_s` + `per_item_s` * n for an input of length n.

    A round trip near the usual one enters an average of 64. The last trip's deviation counts for the next as
    far as it has persisted on this link (`Persistence`), so the estimate depends on the time since
    (`update_expected`). A large deviation is a spike until the next trip confirms it; then the link has
    changed, and the average restarts: at once, or after `fresh_s` if earlier changes reverted sooner than
    that (e.g. Bluetooth disturbed for a second). The cost of spikes is averaged separately over 64 trips, and
    added: it is part of the cost, but does not predict the next trip. If each sample counted in full, one
    spike would stop all sending until the next ping.

    S(n), bytes in both directions, is a line fitted to the sent sizes. The bandwidth is that of `prior` until
    samples of different sizes clearly show another (nine of ten pairs agree); most inputs are too small for
    that, and the round trip decides.
    """

    def __init__(self, prior: Link, settings: TransferSettings) -> None:
        self._settings = settings
        self._seconds_per_byte = 1.0 / prior.bandwidth_Bps
        self._trips: list[tuple[float, float, float]] = []
        self.sent = SizeLine()
        self.received = SizeLine()
        self._level_s = prior.latency_s
        self._usual = 0.0
        self._count = 0
        self._run = self._n_run = 0
        self._run_from_s = 0.0
        self._brief = self._before_s = 0.0
        self._moved_s = _NEVER
        self._odd_s = self._spikes_s = 0.0
        self._last_s = float("-inf")
        self._last_n = 0
        self._off_s = 0.0
        self._persistence = Persistence()
        self._floor: tuple[float, float] = (float("inf"), float("inf"))
        self._floor_from_s = 0.0
        self.rtt_s = prior.latency_s
        self.fixed_s = prior.latency_s
        self.per_item_s = 0.0
        self.changes_at_s = float("inf")
        """The time from which `update_expected` may return another estimate without new observations."""

    @property
    def bandwidth_Bps(self) -> float:  # noqa: N802 - as in ir.cost.Link
        return 1.0 / self._seconds_per_byte

    def least_s(self, n: int) -> float:
        """The shortest way for an input of length n, both directions, in the last half hour or hour."""
        return self.floor_s + (self.sent.at(n) + self.received.at(n)) * self._seconds_per_byte

    @property
    def floor_s(self) -> float:
        """The shortest observed round trip in the last half hour or hour."""
        return min(*self._floor, self.rtt_s)

    def record_answer(
        self, n: int, sent_bytes: int, received_bytes: int, away_s: float, spent_s: float, now_s: float
    ) -> bool:
        """Record a request of length n; return whether its round trip is a surprise (a changed link)."""
        self.sent.add(n, sent_bytes)
        self.received.add(n, received_bytes)
        n_bytes = float(sent_bytes + received_bytes)
        took_s = max(away_s - spent_s, 0.0)
        self._trips.append((n_bytes, took_s, now_s))
        if len(self._trips) >= _PAIRS_EVERY:
            self._learn_bandwidth()
        return self._sample(n, took_s, n_bytes, now_s)

    def record_ping(self, away_s: float, spent_s: float, now_s: float) -> bool:
        """Record a request without payload; return whether its round trip is a surprise."""
        return self._sample(0, max(away_s - spent_s, 0.0), 0.0, now_s)

    def update_expected(self, now_s: float) -> bool:
        """Update the expected round trip and `fixed_s` at `now_s`; return whether they changed."""
        age_s = max(now_s - self._last_s, 0.0)
        per_byte = self._seconds_per_byte
        self.rtt_s = max(self._level_s + self._persistence.at(age_s) * self._off_s, 0.0)
        is_steady = abs(self._off_s) <= _STEADY * self._level_s
        self.changes_at_s = float("inf") if is_steady else self._last_s + next_age_s(age_s)
        fixed_s = self.rtt_s + self._spikes_s + (self.sent.fixed + self.received.fixed) * per_byte
        per_item_s = (self.sent.per_item + self.received.per_item) * per_byte
        moved_s = abs(fixed_s - self.fixed_s) + abs(per_item_s - self.per_item_s) * self._last_n
        if moved_s <= _STEADY * self.rtt_s:
            return False
        self.fixed_s, self.per_item_s = fixed_s, per_item_s
        return True

    def _sample(self, n: int, took_s: float, n_bytes: float, now_s: float) -> bool:
        trip_s = max(took_s - n_bytes * self._seconds_per_byte, 0.0)
        self._keep_floor(trip_s, now_s)
        is_surprise = False
        if not self._settings.is_robust or not self._count:
            self._level_s, self._count = trip_s, 1
        else:
            age_s = now_s - self._last_s
            limit_s = max(_SURPRISE, 4.0 * self._usual) * self._level_s
            off_s = trip_s - self._level_s
            self._persistence.observe(self._off_s, min(max(off_s, -limit_s), limit_s), age_s)
            is_surprise = self._average(trip_s, limit_s, now_s)
            is_odd = self._run and self._n_run == 1  # a single one may be a spike
            off_s = trip_s - self._level_s
            self._off_s = min(max(off_s, -limit_s), limit_s) if is_odd else off_s
        self._last_s, self._last_n = now_s, n
        self.update_expected(now_s)
        return is_surprise

    def _average(self, trip_s: float, limit_s: float, now_s: float) -> bool:
        """Add a trip to the average; return whether it shows a change of the usual."""
        off_s = trip_s - self._level_s
        self._usual += (min(abs(off_s), limit_s) / max(self._level_s, 1e-6) - self._usual) / _DEVIATIONS
        if abs(off_s) <= limit_s:
            spike_s = max(self._odd_s, 0.0) if self._n_run == 1 else 0.0
            self._spikes_s += (spike_s - self._spikes_s) / _SPIKES
            is_new = self._last_s - self._moved_s <= self._settings.fresh_s
            if self._n_run > 1:
                self._record_return()
            elif is_new and abs(trip_s - self._before_s) < abs(trip_s - self._level_s):
                self._record_return()
                self._level_s, self._moved_s, off_s = self._before_s, _NEVER, trip_s - self._before_s
                self._count = _AVERAGED // 4
            self._count += 1
            self._level_s += off_s / min(self._count, _AVERAGED)
            self._run = self._n_run = 0
            return False
        side = 1 if off_s > 0 else -1
        if side != self._run:
            self._run, self._n_run, self._run_from_s, self._odd_s = side, 0, now_s, off_s
        self._n_run += 1
        fresh_s, is_brief = self._settings.fresh_s, self._brief > _BRIEF
        if self._n_run > 1 and (not is_brief or now_s - self._run_from_s > fresh_s):
            self._record_change(trip_s, limit_s, now_s)
            self._level_s += min(off_s, self._odd_s, key=abs)
            self._count, self._run, self._n_run = 2, 0, 0
            return True
        # the current estimate is old, or based on one sample
        if self._count == 1 or (now_s - self._last_s > fresh_s and not is_brief):
            self._level_s, self._count, self._run, self._n_run = trip_s, 1, 0, 0
            return True
        if self._n_run > 1:
            self._level_s += (limit_s if side > 0 else -limit_s) / _AVERAGED
        return False

    def _record_return(self) -> None:
        """Record that the link left its usual state only briefly."""
        self._brief += (1.0 - self._brief) / _STATES

    def _record_change(self, trip_s: float, limit_s: float, now_s: float) -> None:
        """Record a change of the link; its last state's duration tells how soon to believe the next one."""
        if self._last_s - self._moved_s > self._settings.fresh_s:
            self._brief -= self._brief / _STATES
        elif abs(trip_s - self._before_s) <= limit_s:
            self._record_return()
        self._before_s, self._moved_s = self._level_s, now_s

    def _keep_floor(self, trip_s: float, now_s: float) -> None:
        if now_s - self._floor_from_s > _FLOOR_S:
            self._floor, self._floor_from_s = (self._floor[1], float("inf")), now_s
        self._floor = (self._floor[0], min(self._floor[1], trip_s))

    def _learn_bandwidth(self) -> None:
        """Set the median slope of neighbouring pairs, if nine tenths of them agree on more, or less.

        Neighbours in time used the same link. Over longer times, size and round trip correlate without
        causing each other: while a link is slow, only long inputs are worth sending. Neither spikes nor steps
        change the median; for 32 pairs of noise, that many agree once in 400,000 times.
        """
        trips, self._trips = self._trips, []
        half = len(trips) // 2
        slopes = [
            (took - before_s) / (n_bytes - n_before)
            for (n_before, before_s, then_s), (n_bytes, took, now_s) in zip(
                trips[::2], trips[1::2], strict=True
            )
            if n_bytes != n_before and now_s - then_s <= self._settings.fresh_s
        ]
        if len(slopes) < 0.75 * half:
            return
        n_above = sum(slope > self._seconds_per_byte for slope in slopes)
        if min(n_above, len(slopes) - n_above) <= len(slopes) // 10:
            self._seconds_per_byte = max(sorted(slopes)[len(slopes) // 2], self._seconds_per_byte / 4.0)
            rests_s = sorted(took - n_bytes * self._seconds_per_byte for n_bytes, took, _ in trips)
            self._level_s, self._off_s = max(rests_s[half], 0.0), 0.0


class SizeLine:
    """Bytes by length: `fixed` + `per_item` * n, by least squares with slow exponential decay."""

    __slots__ = ("_m", "_n", "_nn", "_ny", "_y", "fixed", "per_item")

    def __init__(self) -> None:
        self._m = self._n = self._nn = self._y = self._ny = 0.0
        self.fixed = self.per_item = 0.0

    def at(self, n: int) -> float:
        return self.fixed + self.per_item * n

    def add(self, n: int, n_bytes: int) -> None:
        if self._m and n_bytes == self.fixed + self.per_item * n:
            return
        keep = _SIZES_KEEP
        m = self._m = self._m * keep + 1.0
        a = self._n = self._n * keep + n
        nn = self._nn = self._nn * keep + n * n
        y = self._y = self._y * keep + n_bytes
        ny = self._ny = self._ny * keep + n * n_bytes
        varies = nn * m - a * a
        slope = (ny * m - a * y) / varies if varies > 1e-9 * nn * m else 0.0
        self.per_item = max(slope, 0.0)
        self.fixed = max((y - self.per_item * a) / m, 0.0)
