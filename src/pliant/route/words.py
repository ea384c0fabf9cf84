"""Make a node's advert from its ways to answer: the least of their curves, and its dependencies."""

from collections.abc import Callable, Iterable, Sequence

from pliant.ir.times.time_curve import MAX_POINTS, minimum, thinned
from pliant.route.choose_endpoint import LOCAL, Candidate
from pliant.route.node_word import Told

_SHORT_S = 1e-4
_ALIKE = 1.0 + 1e-9


def word_of(
    node: str,
    ways: Iterable[Candidate],
    behind: Callable[[str], frozenset[str]],
    max_n: int,
    stamp: tuple[int, int],
) -> Told:
    """The minimum of `ways`, which are without queues, and the nodes behind those that are least anywhere.

    `behind` gives the nodes that a successor's curve depends on.
    """
    curves = {way.name: way.curve.plus(way.fixed_s, way.per_item_s) for way in ways}
    least = minimum(tuple(curves.values()), max_n)
    through = {node}
    for name, curve in curves.items():
        if name != LOCAL and any(curve.at(n) <= t * _ALIKE for n, t in least.points):
            through |= behind(name)
    return Told(node, thinned(least, MAX_POINTS), frozenset(through), stamp)


def wait_beyond(word: Told, n: int, ways: Sequence[Candidate], waits_s: Sequence[float]) -> float:
    """What an input of length n takes longer than `word` tells, by the best of `ways` with its wait.

    Where the best way has a queue, the next best may be sooner: then it is the difference to that one.
    """
    least_s = min(way.seconds(n) + wait_s for way, wait_s in zip(ways, waits_s, strict=True))
    beyond_s = least_s - word.curve.at(n)
    return beyond_s if beyond_s > _SHORT_S else 0.0
