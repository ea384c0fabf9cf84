"""The time to a successor and back, T_rtt + S(n)/B (CRIME eq. 2, 4.3.1). Knows no clock and no socket.

No clocks are compared: the time away, by this device's clock, less the time that the successor says it spent,
by its own, is what the network took. Two clocks that differ by any offset give the same; a drift of 100
parts per million shifts it by that part of the time spent.
"""

from collections import deque
from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.cost import Link

_STEADY = 1e-3
"""A round trip that moves by less than this part stays what it was: nothing depends on it."""
_SURPRISE = 0.3
_PAIRS_EVERY = 32
_SIZES_KEEP = 0.99
_FLOOR_S = 1800.0


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The round trip is the median of the last `keep` samples that are not `fresh_s` older than the last.

    `keep` = 1 is the paper: the last sample. One spike of a busy link then decides nothing, and a lasting
    change is believed after half of `keep`; of two samples the smaller counts.
    """

    keep: int = 3
    fresh_s: float = 10.0

    def __post_init__(self) -> None:
        if self.keep < 1 or not self.fresh_s >= 0:
            raise RouteError(
                f"keeping {self.keep} samples for {self.fresh_s} s cannot be: give 1 or more, and >= 0."
            )


class TransferTimes:
    """What transfers to one successor take: `fixed_s` + `per_item_s` * n for an input of length n.

    S(n), bytes there and back, is a line through what was sent. The bandwidth is that of `prior` until
    samples of different sizes show another beyond doubt (the median slope of pairs is three of its standard
    errors from zero); most inputs are too small for that, and the round trip decides.
    """

    def __init__(self, prior: Link, settings: TransferSettings) -> None:
        self._settings = settings
        self._seconds_per_byte = 1.0 / prior.bandwidth_Bps
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=settings.keep)
        self._pairs: list[tuple[float, float]] = []
        self.sent = SizeLine()
        self.received = SizeLine()
        self._deviation = 0.0
        self._floor: tuple[float, float] = (float("inf"), float("inf"))
        self._floor_from_s = 0.0
        self.rtt_s = prior.rtt_s
        self.is_measured = False
        self.fixed_s = prior.rtt_s
        self.per_item_s = 0.0

    @property
    def bandwidth_Bps(self) -> float:  # noqa: N802 - as ir.cost.Link has it
        return 1.0 / self._seconds_per_byte

    @property
    def floor_s(self) -> float:
        """The shortest round trip in the last half hour or hour, by what was seen."""
        return min(*self._floor, self.rtt_s)

    def answered(
        self, n: int, sent_bytes: int, received_bytes: int, away_s: float, spent_s: float, now_s: float
    ) -> bool:
        """A request of length n came back; whether its round trip surprises (a link in another state)."""
        self.sent.add(n, sent_bytes)
        self.received.add(n, received_bytes)
        n_bytes = float(sent_bytes + received_bytes)
        took_s = max(away_s - spent_s, 0.0)
        self._pairs.append((n_bytes, took_s))
        if len(self._pairs) >= _PAIRS_EVERY:
            self._learn_bandwidth()
        return self._sample(n, took_s, n_bytes, now_s)

    def pinged(self, away_s: float, spent_s: float, now_s: float) -> bool:
        """A request with no payload came back; whether its round trip is a surprise."""
        return self._sample(0, max(away_s - spent_s, 0.0), 0.0, now_s)

    def _sample(self, n: int, took_s: float, n_bytes: float, now_s: float) -> bool:
        recent = self._recent
        recent.append((now_s, took_s, n_bytes))
        per_byte = self._seconds_per_byte
        trip_s = max(took_s - n_bytes * per_byte, 0.0)
        self._keep_floor(trip_s, now_s)
        off = abs(trip_s - self.rtt_s) / max(self.rtt_s, 1e-6)
        is_surprise = self.is_measured and off > max(_SURPRISE, 4.0 * self._deviation)
        self._deviation += 0.1 * (min(off, 1.0) - self._deviation) if self.is_measured else 0.0
        if len(recent) > 1:
            oldest = now_s - self._settings.fresh_s
            trips = sorted([max(s - b * per_byte, 0.0) for at, s, b in recent if at >= oldest])
            trip_s = trips[(len(trips) - 1) // 2]
        if abs(trip_s - self.rtt_s) > _STEADY * self.rtt_s or not self.is_measured:
            self.rtt_s = trip_s
        self.is_measured = True
        fixed_s = self.rtt_s + (self.sent.fixed + self.received.fixed) * per_byte
        per_item_s = (self.sent.per_item + self.received.per_item) * per_byte
        moved_s = abs(fixed_s - self.fixed_s) + abs(per_item_s - self.per_item_s) * n
        if moved_s > _STEADY * self.rtt_s:
            self.fixed_s, self.per_item_s = fixed_s, per_item_s
        return is_surprise

    def _keep_floor(self, trip_s: float, now_s: float) -> None:
        if now_s - self._floor_from_s > _FLOOR_S:
            self._floor, self._floor_from_s = (self._floor[1], float("inf")), now_s
        self._floor = (self._floor[0], min(self._floor[1], trip_s))

    def _learn_bandwidth(self) -> None:
        """Slopes of pairs half a window apart in size: neither a spike nor a step moves their median."""
        pairs, self._pairs = sorted(self._pairs), []
        half = len(pairs) // 2
        slopes = [
            (t - s) / (b - a) for (a, s), (b, t) in zip(pairs[:half], pairs[half:], strict=True) if b > a
        ]
        if len(slopes) < half // 2:
            return
        slopes.sort()
        slope = slopes[len(slopes) // 2]
        apart = sorted(abs(s - slope) for s in slopes)[len(slopes) // 2]
        error = 1.86 * apart / len(slopes) ** 0.5  # of a median: 1.2533 * 1.4826 * MAD / sqrt(m)
        if slope > 3.0 * error and slope > 0.0:
            self._seconds_per_byte = slope


class SizeLine:
    """Bytes by length: `fixed` + `per_item` * n, by least squares that slowly forgets."""

    __slots__ = ("_m", "_n", "_nn", "_ny", "_y", "fixed", "per_item")

    def __init__(self) -> None:
        self._m = self._n = self._nn = self._y = self._ny = 0.0
        self.fixed = self.per_item = 0.0

    def at(self, n: int) -> float:
        return self.fixed + self.per_item * n

    def add(self, n: int, n_bytes: int) -> None:
        if n_bytes == self.fixed + self.per_item * n:
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
