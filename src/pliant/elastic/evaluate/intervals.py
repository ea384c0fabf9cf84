"""Accuracy and F1 with intervals, and differences of two systems on the same examples."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from pliant.arrays import Bool, Int
from pliant.errors import InputError

_Z = 1.959963984540054
"""The normal distribution's 97.5 % point: intervals are central 95 %."""


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A point estimate and its central 95 % interval, all in the unit of `value`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} [{100 * self.low:.2f}, {100 * self.high:.2f}]"


def accuracy_interval(is_right: Bool[np.ndarray, " n"]) -> ConfidenceInterval:
    """Return the share of right answers with its score interval (Wilson 1927, "Probable inference").

    The interval has a width even if all answers are right, or none: 2 of 2 give 34 to 100 %. A bootstrap,
    which only resamples the observations, would report certainty. Raises InputError without examples.
    """
    n = _count(is_right)
    value = float(is_right.mean())
    centre = (value + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(value * (1 - value) / n + _Z**2 / (4 * n**2))
    return ConfidenceInterval(value, max(0.0, centre - half), min(1.0, centre + half))


def paired_difference(a: Bool[np.ndarray, " n"], b: Bool[np.ndarray, " k"]) -> ConfidenceInterval:
    """Return the accuracy of `a` minus the accuracy of `b` on the same examples.

    The interval is the adjusted Wald interval for matched pairs of Agresti and Min (Statistics in Medicine
    24, 2005, section 3.2): half an example is added to each of the four combinations of right and wrong, so
    that two systems which agree on all of a few examples are not called equal. Raises InputError without
    examples, or if the two were measured on different numbers of examples.
    """
    if a.shape != b.shape:
        raise InputError(f"{len(a)} answers cannot be paired with {len(b)}; measure both on the same.")
    n = _count(a)
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    centre = (only_a - only_b) / (n + 2)
    half = _Z * sqrt((only_a + only_b + 1) / (n + 2) - centre**2) / sqrt(n + 2)
    return ConfidenceInterval((only_a - only_b) / n, max(-1.0, centre - half), min(1.0, centre + half))


def f1(predicted: Int[np.ndarray, " n"], expected: Int[np.ndarray, " n"], positive: int = 1) -> float:
    """Return the harmonic mean of precision and recall of the class `positive`; 0 if it never occurs."""
    hits = int(np.sum((predicted == positive) & (expected == positive)))
    claims = int(np.sum(predicted == positive)) + int(np.sum(expected == positive))
    return 2 * hits / claims if claims else 0.0


def _count(examples: np.ndarray) -> int:
    if not len(examples):
        raise InputError("an accuracy needs at least one example.")
    return len(examples)
