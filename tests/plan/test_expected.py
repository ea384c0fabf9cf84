"""Expected accuracy of the submodel that is chosen, by simulation: true accuracies known, examples drawn."""

from statistics import NormalDist

import numpy as np
import pytest

from pliant.plan.submodel.accuracy import ExpectedAccuracy, accuracy_curves, expected_accuracy, expected_grid
from pliant.plan.submodel.plan_options import OURS
from pliant.store.manifest import AccuracyEntry, AccuracyFold, AccuracyTable

PLACES = [(n, m, bits) for n in range(1, 7) for m in (3, 6, 9, 12) for bits in (2, 4, 32)]
N_FOLDS = 5
# Slices x layers and bits that a device and a target leave in reach.
REACHES = [
    np.array([n * m <= slices and bits <= most for n, m, bits in PLACES])
    for slices, most in ((12, 4), (24, 32), (36, 2), (54, 4), (72, 32))
]


def drawn(
    rng: np.random.Generator, true: np.ndarray, n_examples: int, shared: float
) -> tuple[np.ndarray, np.ndarray]:
    """Right answers [K, n_examples] and their log-likelihoods of submodels with the accuracies `true`.

    A probit model: an example is as hard for all by the part `shared` of the variance, by luck for each by
    the rest.
    """
    ability = np.array([NormalDist().inv_cdf(x) for x in true])[:, None]
    common, own = rng.standard_normal(n_examples), rng.standard_normal((len(true), n_examples))
    margin = ability + np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    return margin > 0, -np.log1p(np.exp(-1.7 * margin))


def table_of(right: np.ndarray, likelihood: np.ndarray, n_folds: int = N_FOLDS) -> AccuracyTable:
    fold_of = np.arange(right.shape[1]) % n_folds
    entries = tuple(
        AccuracyEntry(*place, float(a.mean()), float(x.mean()))
        for place, a, x in zip(PLACES, right, likelihood, strict=True)
    )
    folds = tuple(
        AccuracyFold(
            int((fold_of == f).sum()),
            tuple(right[:, fold_of == f].mean(axis=1).tolist()),
            tuple(likelihood[:, fold_of == f].mean(axis=1).tolist()),
        )
        for f in range(n_folds)
    )
    return AccuracyTable(right.shape[1], entries, folds if n_folds > 1 else ())


def alike(rng: np.random.Generator) -> np.ndarray:
    """All submodels as good as each other: whatever seems best is luck alone."""
    return np.full(len(PLACES), 0.88)


def shaped(rng: np.random.Generator) -> np.ndarray:
    """More layers, slices and bits are better, by less and less, and every submodel has a deviation."""
    loss = {2: 0.08, 4: 0.01, 32: 0.0}
    mean = [0.91 - 0.12 * np.exp(-0.7 * (n - 1)) - 0.02 * np.exp(-m / 4) - loss[b] for n, m, b in PLACES]
    return np.array(mean) + rng.normal(0, 0.003, len(PLACES))


def simulated(kind, n_folds: int, n_tables: int, n_examples: int = 400, shared: float = 0.8):  # type: ignore[no-untyped-def]
    """Of every choice: what was expected less the truth, whether the interval held, measured less truth."""
    rng = np.random.default_rng(0)
    errors, holds, naive = [], [], []
    for _ in range(n_tables):
        true = kind(rng)
        right, likelihood = drawn(rng, true, n_examples, shared)
        found = expected_accuracy(table_of(right, likelihood, n_folds))
        values, measured = np.array(list(found.grid.values())), right.mean(axis=1)
        for reach in REACHES:
            i = max(np.flatnonzero(reach), key=lambda i: values[i])
            interval = found.interval(values[i])
            errors.append(values[i] - true[i])
            holds.append(interval.low <= true[i] <= interval.high)
            luckiest = max(np.flatnonzero(reach), key=lambda i: measured[i])
            naive.append(measured[luckiest] - true[luckiest])
    return np.array(errors), np.array(holds), np.array(naive)


@pytest.mark.parametrize("kind", [alike, shaped])
def test_what_is_expected_of_the_chosen_submodel_is_unbiased_and_its_interval_covers(kind) -> None:  # type: ignore[no-untyped-def]
    """Taking the largest of many noisy measurements promises what no new example keeps (issue: 92.4 % told,
    89.8 measured). The level of one table is off by 1.6 points at 400 examples, so the mean over 60 tables
    is known to 0.2: 0.4 points is what the bias may be; the largest measurement is off by more."""
    errors, holds, naive = simulated(kind, N_FOLDS, 60)
    assert abs(errors.mean()) < 0.004
    assert holds.mean() >= 0.95
    assert naive.mean() > errors.mean() + 0.003


def test_a_table_of_before_there_were_folds_gets_an_interval_for_all_its_entries_at_once() -> None:
    """The examples that judge it also chose it: only an interval for every entry is honest then."""
    errors, holds, _ = simulated(alike, 1, 30)
    assert errors.mean() > 0
    assert holds.mean() >= 0.95
    right, likelihood = drawn(np.random.default_rng(1), alike(np.random.default_rng(1)), 400, 0.8)
    old, new = (expected_accuracy(table_of(right, likelihood, n)) for n in (1, N_FOLDS))
    assert width(old) > 1.3 * width(new)


def width(found: ExpectedAccuracy) -> float:
    interval = found.interval(0.9)
    return interval.high - interval.low


def test_more_examples_make_the_interval_narrower_down_to_how_well_scores_predict() -> None:
    """An interval that did not shrink would be of no use, one that shrinks to nothing would lie."""
    widths = []
    for n_examples in (100, 400, 1600):
        rng = np.random.default_rng(2)
        widths.append(width(expected_accuracy(table_of(*drawn(rng, shaped(rng), n_examples, 0.8)))))
    assert widths[0] > 1.5 * widths[1] > 2.0 * widths[2] > 0.02


def test_intervals_hold_their_accuracy_and_stay_fractions() -> None:
    """All right of a few examples is no certainty (Wilson 1927, checked against its quadratic's roots)."""
    found = ExpectedAccuracy({}, 20.0)
    for p in (0.0, 0.3, 0.97, 1.0):
        interval = found.interval(p)
        assert 0 <= interval.low <= p <= interval.high <= 1
        for end in (interval.low, interval.high):
            assert (p - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / 20, abs=1e-9)


def test_submodels_that_seem_equal_are_expected_to_be_equal_and_clear_gaps_stay() -> None:
    """Shrinkage goes by what scores predict: luck is taken out, what every fold agrees on is kept."""
    rng = np.random.default_rng(3)
    lucky = expected_grid(table_of(*drawn(rng, alike(rng), 400, 0.8)))
    assert max(lucky.values()) - min(lucky.values()) < 0.02
    apart = np.where([n > 3 for n, _, _ in PLACES], 0.9, 0.7)
    kept = expected_grid(table_of(*drawn(rng, apart, 400, 0.8)))
    deep = [value for (n, _, _), value in kept.items() if n > 3]
    shallow = [value for (n, _, _), value in kept.items() if n <= 3]
    assert min(deep) - max(shallow) > 0.12


def test_expected_accuracy_never_falls_with_bits_with_folds_too() -> None:
    """The planner spends bytes on bits: it relies on their not hurting."""
    rng = np.random.default_rng(4)
    grid = expected_grid(table_of(*drawn(rng, shaped(rng), 150, 0.5)))
    known = accuracy_curves(grid, OURS.errors)
    for n, m, _ in PLACES:
        row = [grid[n, m, bits] for bits in (2, 4, 32)]
        assert row == sorted(row)
        assert known.at(n, m, 1.0) == row[-1]
