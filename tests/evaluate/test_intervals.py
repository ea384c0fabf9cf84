"""Intervals that claims rest on."""

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.evaluate.intervals import accuracy, f1, paired_difference


def test_the_interval_of_an_accuracy_matches_the_normal_approximation() -> None:
    """At n = 2000 the two agree to a tenth of a point; a wrong resampling unit would be far off."""
    is_right = np.arange(2000) < 1700
    measured = accuracy(is_right)
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


def test_identical_systems_differ_by_exactly_nothing() -> None:
    """The interval of a difference that is always zero has no width."""
    a = np.arange(100) % 3 == 0
    assert paired_difference(a, a) == paired_difference(~a, ~a)
    assert paired_difference(a, a).high == 0


def test_f1_agrees_with_its_definition_by_counts() -> None:
    """MRPC is reported by F1."""
    predicted, expected = np.array([1, 1, 0, 1, 0]), np.array([1, 0, 0, 1, 1])
    assert f1(predicted, expected) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
    assert f1(np.zeros(3, int), np.zeros(3, int)) == 0


def test_unpaired_answers_are_refused() -> None:
    """A silent truncation would compare different sentences."""
    with pytest.raises(InputError, match="paired"):
        paired_difference(np.ones(3, bool), np.ones(4, bool))
