"""A node's adverts, made from its ways to answer: the least of their curves, and its dependencies."""

from collections.abc import Callable, Iterable, Sequence
from typing import final

from pliant.ir.curve import MAX_POINTS, minimum, thinned
from pliant.route.choose_endpoint import LOCAL, Candidate
from pliant.route.curve_advert import CurveAdvert

_SHORT_S = 1e-4
_ALIKE = 1.0 + 1e-9


@final
class Adverts:
    """The adverts of `node`, kept until its ways change: one for all, and one for each node behind them.

    `behind` gives the nodes that the curve of a way depends on. Stamps are `started` and a count.
    """

    def __init__(self, node: str, started: int, max_n: int, behind: Callable[[str], frozenset[str]]) -> None:
        self._node, self._started, self._max_n, self._behind = node, started, max_n, behind
        self._kept: dict[str | None, CurveAdvert] = {}
        self._n_adverts = 0

    def clear(self) -> None:
        """The ways have changed."""
        self._kept = {}

    def of(
        self, predecessor: str | None, ways: Sequence[Candidate]
    ) -> tuple[CurveAdvert, Sequence[Candidate]]:
        """What `predecessor` is told, of ways that do not depend on it, and these. None: of all ways."""
        advert = self._kept.get(None) or self._made(None, ways)
        if predecessor is not None and predecessor in advert.through:
            ways = [way for way in ways if predecessor not in self._behind(way.name)]
            advert = self._kept.get(predecessor) or self._made(predecessor, ways)
        return advert, ways

    def _made(self, predecessor: str | None, ways: Sequence[Candidate]) -> CurveAdvert:
        self._n_adverts += 1
        stamp = (self._started, self._n_adverts)
        made = advert_of(self._node, ways, self._behind, self._max_n, stamp)
        self._kept[predecessor] = made
        return made


def advert_of(
    node: str,
    ways: Iterable[Candidate],
    behind: Callable[[str], frozenset[str]],
    max_n: int,
    stamp: tuple[int, int],
) -> CurveAdvert:
    """The minimum of `ways`, which are without queues, and the nodes behind those that are least anywhere.

    `behind` gives the nodes that a successor's curve depends on.
    """
    curves = {way.name: way.curve.plus(way.fixed_s, way.per_item_s) for way in ways}
    least = minimum(tuple(curves.values()), max_n)
    through = {node}
    for name, curve in curves.items():
        if name != LOCAL and any(curve.at(n) <= t * _ALIKE for n, t in least.points):
            through |= behind(name)
    return CurveAdvert(node, thinned(least, MAX_POINTS), frozenset(through), stamp)


def wait_beyond(advert: CurveAdvert, n: int, ways: Sequence[Candidate], waits_s: Sequence[float]) -> float:
    """What an input of length n takes longer than `advert` tells, by the best of `ways` with its wait.

    Where the best way has a queue, the next best may be sooner: then it is the difference to that one.
    """
    least_s = min(way.seconds(n) + wait_s for way, wait_s in zip(ways, waits_s, strict=True))
    beyond_s = least_s - advert.curve.at(n)
    return beyond_s if beyond_s > _SHORT_S else 0.0
