"""Expected accuracy of submodels at any fidelity, from a few measurements.

A few hundred examples determine a submodel's accuracy to within one or two points, and submodels lie closer
than that: the apparently best one is often the luckiest, and its measured accuracy is too high. Therefore:

- A submodel's *score* is the mean of its measured accuracy and of a prediction by a straight line, over all
  entries, from its log-likelihood, which is less noisy; for one submodel, more bits never score less (pool
  adjacent violators). Nothing is assumed about depth or width: at 2 bits, four layers of the shipped model
  really are worse than three.
- The expected accuracy at a score is estimated on examples that did not contribute to it (cross-fitting):
  each fold of the table gives the accuracy of submodels that the other folds scored. A weighted line through
  the scores near each score shrinks it towards its neighbours by as much as the scores fail to predict (James
  and Stein 1961; Efron and Morris, JASA 1975, "Data analysis using Stein's estimator").
- That estimate increases with the score, so the submodel of the highest expected accuracy has the highest
  score.
- Its interval covers two errors: that of a share of `n_examples` (Wilson 1927), and the deviation of
  submodels from what their scores predict.

A table without folds (of an older format) gives the score itself. The same examples then choose and judge, so
its interval is wide enough for all its entries at once (Sidak, JASA 1967).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pliant.arrays import Float
from pliant.ir.bitwidths import PLANES
from pliant.store.manifest import AccuracyEntry, AccuracyTable

# Expected accuracy of a submodel at uniform bits: (n, m, bits) -> fraction.
AccuracyGrid = Mapping[tuple[int, int, int], float]
_COVERAGE = 0.95
_NEAR = 0.4
"""The fraction of all scores used to fit the line at a score."""
_N_KNOTS = 33
"""The number of scores at which a line is fitted; values in between are interpolated."""


@dataclass(frozen=True, slots=True)
class AccuracyInterval:
    """A fraction that lies within `low` and `high` in 95 of 100 cases."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ExpectedAccuracy:
    """The expected accuracy of a table's submodels on unseen examples.

    `n_effective` is the number of examples on which a single measured accuracy would be equally uncertain.
    """

    grid: AccuracyGrid
    n_effective: float

    def interval(self, accuracy: float) -> AccuracyInterval:
        """Return the central 95 % interval (Wilson's score interval) of an expected accuracy of the grid."""
        n, z = self.n_effective, NormalDist().inv_cdf((1 + _COVERAGE) / 2)
        centre = (accuracy + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * (accuracy * (1 - accuracy) / n + z**2 / (4 * n**2)) ** 0.5
        return AccuracyInterval(max(0.0, centre - half), min(1.0, centre + half))


def expected_accuracy(table: AccuracyTable) -> ExpectedAccuracy:
    """Return the expected accuracy of each measured submodel on unseen examples, with its uncertainty."""
    measured = np.array([e.accuracy for e in table.entries])
    scores = _scores(table.entries, measured, np.array([e.log_likelihood for e in table.entries]))
    places = [(e.n, e.m, e.bits) for e in table.entries]
    if not table.folds:
        one = NormalDist().inv_cdf((1 + _COVERAGE) / 2)
        all_ = NormalDist().inv_cdf((1 + _COVERAGE ** (1 / len(places))) / 2)
        return ExpectedAccuracy(
            dict(zip(places, scores.tolist(), strict=True)), table.n_examples * (one / all_) ** 2
        )
    x, y = _cross_fitted(table)
    centred, level = scores - scores.mean(), float(measured.mean())
    knots = np.unique(np.quantile(np.concatenate((x.ravel(), centred)), np.linspace(0, 1, _N_KNOTS)))
    lines = _local_lines(x.ravel(), y.ravel(), knots)
    values = np.clip(level + np.interp(centred, knots, lines), 0, 1)
    missed = np.mean((y - np.interp(x, knots, lines)) ** 2)
    spread = max(0.0, float(missed - np.mean(y.var(axis=0, ddof=1))))
    share = max(level * (1 - level), 1e-9)
    grid = dict(zip(places, values.tolist(), strict=True))
    return ExpectedAccuracy(grid, 1 / (1 / table.n_examples + spread / share))


def expected_grid(table: AccuracyTable) -> AccuracyGrid:
    """Return the expected accuracy of each measured submodel on unseen examples."""
    return expected_accuracy(table).grid


def _scores(
    entries: Sequence[AccuracyEntry], measured: Float[np.ndarray, " K"], likelihood: Float[np.ndarray, " K"]
) -> Float[np.ndarray, " K"]:
    """Return the score of each entry; never less at more bits of the same submodel."""
    if np.ptp(likelihood) > 0:
        line = np.polynomial.Polynomial.fit(likelihood, measured, 1)
        measured = np.clip((measured + line(likelihood)) / 2, 0, 1)
    scores = np.empty(len(entries))
    for place in dict.fromkeys((e.n, e.m) for e in entries):
        mine = sorted(
            (i for i, e in enumerate(entries) if (e.n, e.m) == place), key=lambda i: entries[i].bits
        )
        scores[mine] = _rising(measured[mine].tolist())
    return scores


def _cross_fitted(table: AccuracyTable) -> tuple[Float[np.ndarray, "F K"], Float[np.ndarray, "F K"]]:
    """Return scores without each fold, and accuracy on that fold, both relative to their mean over entries.

    Folds differ in difficulty; between entries that cancels out.
    """
    sizes = np.array([fold.n_examples for fold in table.folds], np.float64)
    accuracy = np.array([fold.accuracy for fold in table.folds])
    likelihood = np.array([fold.log_likelihood for fold in table.folds])
    x = []
    for f in range(len(sizes)):
        weights = np.where(np.arange(len(sizes)) == f, 0.0, sizes)
        others = [np.average(values, axis=0, weights=weights) for values in (accuracy, likelihood)]
        x.append(_scores(table.entries, *others))
    scores = np.array(x)
    return (
        scores - scores.mean(axis=1, keepdims=True),
        accuracy - accuracy.mean(axis=1, keepdims=True),
    )


def _local_lines(
    x: Float[np.ndarray, " P"], y: Float[np.ndarray, " P"], at: Float[np.ndarray, " Q"]
) -> Float[np.ndarray, " Q"]:
    """`y` at each of `at` (ascending), non-decreasing: lines through near points (LOESS, Cleveland 1979)."""
    distance = np.abs(at[:, None] - x)
    n_near = min(max(3, int(_NEAR * len(x))), len(x)) - 1
    reach = np.maximum(np.partition(distance, n_near)[:, n_near], 1e-9)
    weights = np.clip(1 - (distance / reach[:, None]) ** 3, 0, 1) ** 3 + 1e-9
    weights /= weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x, weights @ y
    square = weights @ x**2 - mean_x**2
    slope = (weights @ (x * y) - mean_x * mean_y) / np.maximum(square, 1e-12)
    values = mean_y + np.clip(slope, 0.0, 1.0) * (at - mean_x)
    return np.array(_rising(values.tolist()))


@dataclass(frozen=True, slots=True)
class AccuracyCurves:
    """Accuracy of each submodel against fidelity, the share of the weights' variance that its bits keep.

    Uniform bits have the fidelity 1 - error; in between, accuracy is interpolated linearly, and it never
    decreases.
    """

    points: Mapping[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...]]]

    @property
    def places(self) -> Set[tuple[int, int]]:
        """The measured submodels, n x m."""
        return self.points.keys()

    def at(self, n: int, m: int, fidelity: float) -> float | None:
        """Return the expected accuracy of n x m at `fidelity`; None if it was not measured."""
        if (n, m) not in self.points:
            return None
        fidelities, values = self.points[n, m]
        return float(np.interp(fidelity, fidelities, values))


def accuracy_curves(grid: AccuracyGrid, errors: Sequence[float]) -> AccuracyCurves:
    """Convert `grid` to curves; `errors` is the relative weight error at 0..6 planes (full fidelity: 0)."""
    points: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for (n, m, bits), value in grid.items():
        points.setdefault((n, m), []).append((1 - (errors[bits] if bits <= PLANES else 0.0), value))
    found = {}
    for place, pairs in points.items():
        pairs.sort()
        best = np.maximum.accumulate([value for _, value in pairs]).tolist()
        found[place] = (tuple(x for x, _ in pairs), tuple(best))
    return AccuracyCurves(found)


def _rising(values: Sequence[float]) -> list[float]:
    """The least-squares non-decreasing sequence for `values`: violating neighbours share their mean."""
    blocks: list[tuple[float, int]] = []  # sum and number
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] * count > total * blocks[-1][1]:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
