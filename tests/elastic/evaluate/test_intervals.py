"""Intervals that claims rest on."""

from math import comb

import numpy as np
import pytest

from pliant.elastic.evaluate.intervals import accuracy_interval, f1, paired_difference
from pliant.errors import InputError


def test_the_interval_of_an_accuracy_matches_the_normal_approximation() -> None:
    """At n = 2000 the two agree to a tenth of a point; a wrong resampling unit would be far off."""
    is_right = np.arange(2000) < 1700
    measured = accuracy_interval(is_right)
    half = 1.96 * np.sqrt(0.85 * 0.15 / 2000)
    assert measured.value == 0.85
    assert measured.low == pytest.approx(0.85 - half, abs=1.5e-3)
    assert measured.high == pytest.approx(0.85 + half, abs=1.5e-3)


def test_pairing_removes_what_both_systems_share() -> None:
    """Two systems that differ on 2 of 1000 examples differ by at most a fraction of a point."""
    a = np.random.default_rng(0).random(1000) < 0.9
    b = a.copy()
    b[:2] = ~b[:2]
    difference = paired_difference(a, b)
    assert difference.high - difference.low < 0.007
    assert difference.low <= 0 <= difference.high


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (2, 2, 0.3424, 1.0),
        (0, 2, 0.0, 0.6576),
        (1, 1, 0.2065, 1.0),
        (10, 10, 0.7225, 1.0),
        (9, 10, 0.5958, 0.9821),
    ],
)
def test_a_few_examples_prove_little(right: int, n: int, low: float, high: float) -> None:
    """2 of 2 gave [100, 100]. Numbers: scipy, binomtest(k, n).proportion_ci(method="wilson")."""
    measured = accuracy_interval(np.arange(n) < right)
    assert measured.value == right / n
    assert (measured.low, measured.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_an_accuracy_lies_within_its_interval() -> None:
    """For every count: also where rounding would push an end past 0, 1 or the value itself."""
    for n in range(1, 40):
        for right in range(n + 1):
            found = accuracy_interval(np.arange(n) < right)
            assert 0 <= found.low <= found.value + 1e-12
            assert found.value - 1e-12 <= found.high <= 1


def test_the_true_accuracy_lies_within_95_of_100_intervals() -> None:
    """What an interval promises, at 12 examples: summed over all outcomes, not drawn."""
    n = 12
    for truth in np.linspace(0.05, 0.95, 19):
        chances = [comb(n, k) * truth**k * (1 - truth) ** (n - k) for k in range(n + 1)]
        intervals = [accuracy_interval(np.arange(n) < k) for k in range(n + 1)]
        covered = sum(p for p, i in zip(chances, intervals, strict=True) if i.low <= truth <= i.high)
        assert covered > 0.9, truth  # score intervals cover 95 % on average over truths, not for each


def test_systems_that_agree_on_a_few_examples_may_still_differ() -> None:
    """Two equal answers are no proof of equality; two thousand are a good one."""
    few, many = (paired_difference(np.ones(n, bool), np.ones(n, bool)) for n in (2, 2000))
    assert (few.value, many.value) == (0, 0)
    assert few.low == -few.high < -0.4
    assert 0 < many.high < 0.002


def test_a_difference_agrees_with_the_published_example() -> None:
    """Agresti and Min's formula by its parts: 3 only here, 1 only there, of 20."""
    a, b = np.zeros(20, bool), np.zeros(20, bool)
    a[:8] = b[:8] = True
    a[8:11], b[11] = True, True
    found = paired_difference(a, b)
    half = 1.959964 * np.sqrt((3.5 + 1.5) - (3.5 - 1.5) ** 2 / 22) / 22
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == (pytest.approx(2 / 22 - half), pytest.approx(2 / 22 + half))


def test_f1_agrees_with_its_definition_by_counts() -> None:
    """MRPC is reported by F1."""
    predicted, expected = np.array([1, 1, 0, 1, 0]), np.array([1, 0, 0, 1, 1])
    assert f1(predicted, expected) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
    assert f1(np.zeros(3, int), np.zeros(3, int)) == 0


def test_unpaired_answers_are_refused() -> None:
    """A silent truncation would compare different sentences."""
    with pytest.raises(InputError, match="paired"):
        paired_difference(np.ones(3, bool), np.ones(4, bool))
