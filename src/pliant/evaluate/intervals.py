"""Accuracy and F1 with intervals, and differences of two systems on the same examples. Knows no model."""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Bool, Int
from pliant.errors import InputError

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and its central 95 % bootstrap interval, all in the unit of `value`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} [{100 * self.low:.2f}, {100 * self.high:.2f}]"


def accuracy(is_right: Bool[np.ndarray, " n"], seed: int = 0) -> Interval:
    """The share of right answers; the interval resamples examples (percentile bootstrap)."""
    return _interval(is_right.astype(np.float64), seed)


def paired_difference(a: Bool[np.ndarray, " n"], b: Bool[np.ndarray, " k"], seed: int = 0) -> Interval:
    """Accuracy of `a` minus accuracy of `b` on the same examples: the paired bootstrap.

    Raises InputError when the two were not measured on equally many examples.
    """
    if a.shape != b.shape:
        raise InputError(f"{len(a)} answers cannot be paired with {len(b)}; measure both on the same.")
    return _interval(a.astype(np.float64) - b.astype(np.float64), seed)


def f1(predicted: Int[np.ndarray, " n"], expected: Int[np.ndarray, " n"], positive: int = 1) -> float:
    """Harmonic mean of precision and recall of the class `positive`; 0 when it never occurs."""
    hits = int(np.sum((predicted == positive) & (expected == positive)))
    claims = int(np.sum(predicted == positive)) + int(np.sum(expected == positive))
    return 2 * hits / claims if claims else 0.0


def _interval(values: np.ndarray, seed: int) -> Interval:
    n = len(values)
    if n == 0:
        raise InputError("an accuracy needs at least one example.")
    # The mean of a resample depends only on how often each distinct value is drawn.
    levels, counts = np.unique(values, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(n, counts / n, size=RESAMPLES)
    low, high = np.quantile(draws @ levels / n, (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))
