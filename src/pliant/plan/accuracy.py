"""How accurate submodels are expected to be at any fidelity, from a few measurements. Chooses no submodel.

A few hundred examples tell a submodel's accuracy to one or two points, and submodels lie closer than that:
the one that seems best is often the luckiest. So measured accuracy is not taken as it is:

- the mean log-likelihood of the right labels on the same examples is less noisy; a straight line through all
  entries turns it into an accuracy, and the expected accuracy is the mean of the two;
- of one submodel, more bits are never expected to be less accurate (pool adjacent violators).

Nothing is assumed of depth or width: at 2 bits, four layers of the shipped model really are worse than
three. On it, with its grid at 2, 4 and 32 bits measured on 300 (1000) held-out sentences and all decisions
judged on the dev sentences, random devices and targets lose on average 0.56 (0.42) points against the best
submodel in reach; by plain accuracy 0.71 (0.55), by likelihood alone 0.55 (0.45), by most slices 1.5.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from pliant.plan.shape import PLANES
from pliant.store.manifest import AccuracyEntry, AccuracyTable

# Expected accuracy of a submodel at uniform bits: (n, m, bits) -> fraction.
AccuracyGrid = Mapping[tuple[int, int, int], float]


def expected_grid(table: AccuracyTable) -> AccuracyGrid:
    """What each measured submodel is expected to answer right on examples not yet seen."""
    entries = table.entries
    measured = np.array([e.accuracy for e in entries])
    likelihood = np.array([e.log_likelihood for e in entries])
    if np.ptp(likelihood) > 0:
        line = np.polynomial.Polynomial.fit(likelihood, measured, 1)
        measured = np.clip((measured + line(likelihood)) / 2, 0, 1)
    values = dict(zip(entries, measured.tolist(), strict=True))
    grid: dict[tuple[int, int, int], float] = {}
    for place in dict.fromkeys((e.n, e.m) for e in entries):
        mine = sorted((e for e in entries if (e.n, e.m) == place), key=_bits)
        rising = _rising([values[e] for e in mine])
        grid |= {(e.n, e.m, e.bits): value for e, value in zip(mine, rising, strict=True)}
    return grid


@dataclass(frozen=True, slots=True)
class Curves:
    """Accuracy of each submodel against fidelity, the share of the weights' variance that its bits keep.

    Uniform bits have the fidelity 1 - error; in between, accuracy is linear, and it never falls.
    """

    points: Mapping[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...]]]

    @property
    def places(self) -> Set[tuple[int, int]]:
        """The submodels n x m that were measured."""
        return self.points.keys()

    def at(self, n: int, m: int, fidelity: float) -> float | None:
        """Expected accuracy of n x m at `fidelity`; None where nothing was measured."""
        if (n, m) not in self.points:
            return None
        fidelities, values = self.points[n, m]
        return float(np.interp(fidelity, fidelities, values))


def curves(grid: AccuracyGrid, errors: Sequence[float]) -> Curves:
    """`grid` as curves; `errors` is the relative weight error at 0..6 planes, full fidelity has none."""
    points: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for (n, m, bits), value in grid.items():
        points.setdefault((n, m), []).append((1 - (errors[bits] if bits <= PLANES else 0.0), value))
    found = {}
    for place, pairs in points.items():
        pairs.sort()
        best = np.maximum.accumulate([value for _, value in pairs]).tolist()
        found[place] = (tuple(x for x, _ in pairs), tuple(best))
    return Curves(found)


def _bits(entry: AccuracyEntry) -> int:
    return entry.bits


def _rising(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in squares: neighbours that fall share their mean."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [float(np.mean(block)) for block in blocks for _ in block]
