"""A node's adverts: the minimum of its ways' curves per accuracy, and the nodes they depend on."""

from bisect import bisect
from collections.abc import Callable, Sequence
from math import inf
from typing import final

from pliant.ir.curve import MAX_POINTS, thin
from pliant.ir.endpoint import ACCURACY_TOLERANCE, RESOLUTION, ServiceLevel
from pliant.ir.times.bounded_level import has_moved, pick_evenly
from pliant.route.choice.candidate import Candidate
from pliant.route.curve_advert import MAX_LEVELS, CurveAdvert
from pliant.route.way_times import WayCurve, lower_envelope

_SHORT_S = 1e-4
_FEW_POINTS = 12
"""Maximum number of points of the curves of lesser levels, and of bounds."""


@final
class AdvertCache:
    """The adverts of `node`, cached until its ways change: one for all, and one per node behind them.

    `behind` returns the nodes that the curve of a way depends on. Stamps are `started` and a count.
    """

    def __init__(self, node: str, started: int, max_n: int, behind: Callable[[str], frozenset[str]]) -> None:
        self._node, self._started, self._max_n, self._behind = node, started, max_n, behind
        self._kept: dict[str | None, CurveAdvert] = {}
        self._ways: tuple[Candidate, ...] = ()
        """The ways of the cached adverts."""
        self._behind_told: list[frozenset[str]] = []
        self._n_adverts = 0

    def set_ways(self, ways: Sequence[Candidate]) -> None:
        """Set the current ways. Adverts are kept while no way has changed by more than 3 %."""
        if not self._kept:
            return  # most nodes have no predecessor, and make no advert
        behind = [self._behind(way.name) for way in ways]
        pairs = zip(ways, self._ways, strict=False)
        if behind != self._behind_told or not all(_is_alike(a, b, self._max_n) for a, b in pairs):
            self._kept = {}

    def get(
        self, predecessor: str | None, ways: Sequence[Candidate]
    ) -> tuple[CurveAdvert, Sequence[Candidate]]:
        """`predecessor`'s advert, of ways that do not depend on it, and these ways. None: of all ways."""
        if not self._kept:
            self._ways, self._behind_told = tuple(ways), [self._behind(way.name) for way in ways]
        advert = self._kept.get(None) or self._build(None, ways)
        if predecessor is not None and predecessor in advert.through:
            ways = [way for way in ways if predecessor not in self._behind(way.name)]
            advert = self._kept.get(predecessor) or self._build(predecessor, ways)
        return advert, ways

    def _build(self, predecessor: str | None, ways: Sequence[Candidate]) -> CurveAdvert:
        self._n_adverts += 1
        stamp = (self._started, self._n_adverts)
        made = self._kept[predecessor] = advert_of(self._node, ways, self._behind, self._max_n, stamp)
        return made


def _is_alike(a: Candidate, b: Candidate, max_n: int) -> bool:
    return (
        a.name == b.name
        and a.levels == b.levels
        and not has_moved(a.fixed_s + _SHORT_S, b.fixed_s + _SHORT_S)
        and not has_moved(*(_SHORT_S + c.fixed_s + c.per_item_s * max_n for c in (a, b)))
        and not has_moved(a.way_bound, b.way_bound)
    )


def advert_of(
    node: str,
    ways: Sequence[Candidate],
    behind: Callable[[str], frozenset[str]],
    max_n: int,
    stamp: tuple[int, int],
) -> CurveAdvert:
    """Return per accuracy the minimum of `ways`, without queues, and the nodes behind the minimal ones.

    `behind` returns the nodes that a way's curve depends on. At most `MAX_LEVELS` levels are advertised:
    see `_advertised`.
    """
    every = [(way, level) for way in ways for level in way.levels]
    found = [one for one in every if one[1].reason is None] or every
    found.sort(key=lambda one: -one[1].quality)
    losses = [-level.quality for _, level in found]
    falling = _advertised([-loss for loss in reversed(dict.fromkeys(losses))])[::-1]
    counts = [bisect(losses, ACCURACY_TOLERANCE - quality) for quality in falling]
    kinds = [[WayCurve(level.curve, way.fixed_s, way.per_item_s) for way, level in found]]
    n_exact = next((i for i, (way, level) in enumerate(found) if _is_bounded(way, level)), len(found))
    if n_exact < len(found):
        kinds.append(
            [
                WayCurve(level.bound_curve, way.fixed_s * way.way_bound, way.per_item_s * way.way_bound)
                for way, level in found
            ]
        )
    (medians, *bounds), touching = lower_envelope(kinds, counts, max_n)
    names = {way.name for (way, _), is_least in zip(found, touching, strict=True) if is_least}
    through = frozenset({node}).union(*map(behind, names))
    levels = []
    for i, (quality, count) in enumerate(zip(falling, counts, strict=True)):
        is_measured = all(level.accuracy is not None for _, level in found[:count])
        curve = thin(medians[i], _FEW_POINTS if i else MAX_POINTS)
        bound = thin(bounds[0][i], _FEW_POINTS) if n_exact < count else None
        levels.append(ServiceLevel(curve, quality if is_measured else None, bound, quality))
    return CurveAdvert(node, tuple(reversed(levels)), through, stamp)


def _advertised(qualities: Sequence[float]) -> list[float]:
    """Return at most `MAX_LEVELS` of ascending `qualities`, with the least and the greatest.

    The least within `RESOLUTION` of the greatest is among them: requests with a deadline and a low floor are
    answered at it, so without it this node would look slower than it is.
    """
    alike = next(one for one in qualities if one >= qualities[-1] - RESOLUTION - ACCURACY_TOLERANCE)
    evenly = pick_evenly(qualities, MAX_LEVELS)
    if alike not in evenly:
        evenly[min(bisect(evenly, alike), MAX_LEVELS - 2)] = alike
    return evenly


def _is_bounded(way: Candidate, level: ServiceLevel) -> bool:
    return level.bound is not None or way.way_bound > 1.0


def wait_beyond(advert: CurveAdvert, n: int, ways: Sequence[Candidate], waits_s: Sequence[float]) -> float:
    """Return the wait of the most accurate answer of `advert` beyond its curve, for an input of length n.

    Only `ways` with that accuracy count, each with its wait: an idle way with less accuracy does not shorten
    the wait of requests for more. If the best way has a queue, the next best may be faster; then the result
    is the difference to it.
    """
    least_quality = advert.levels[-1].quality - ACCURACY_TOLERANCE
    least_s = inf
    for way, wait_s in zip(ways, waits_s, strict=True):
        way_s = way.fixed_s + way.per_item_s * n
        for level in reversed(way.levels):
            if level.quality < least_quality:
                break
            least_s = min(least_s, way_s + level.curve.at(n) + wait_s)
    beyond_s = least_s - advert.curve.at(n)
    return beyond_s if _SHORT_S < beyond_s < inf else 0.0
