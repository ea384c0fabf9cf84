"""Bounds that follow what is observed: coverage in the long run, whatever the times do."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.bounds import KEPT, AdaptiveBound

factors = st.floats(0.3, 3.0)


def coverage(bound: AdaptiveBound, seconds: np.ndarray, predicted_s: tuple[float, float]) -> np.ndarray:
    """Which of `seconds` stay under the bound that was valid before each."""
    held = []
    for took_s in seconds:
        held.append(took_s <= bound.seconds(*predicted_s))
        bound.observe(*predicted_s, float(took_s))
    return np.array(held)


@given(st.floats(0.02, 0.6), factors, st.floats(1.0, 1.5), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_bound_holds_for_95_in_100_in_the_long_run(
    spread: float, factor: float, predicted: float, seed: int
) -> None:
    """Whatever was predicted: noise of any spread, any constant factor between prediction and device."""
    noise = np.exp(spread * np.random.default_rng(seed).standard_normal(3000))
    held = coverage(AdaptiveBound(), factor * noise, (1.0, predicted))
    # 2,000 answers: three standard errors of a coverage of 0.95 are 0.015
    assert held[1000:].mean() >= KEPT - 0.02


@pytest.mark.parametrize("never", [inf, nan, -1.0])
def test_times_that_cannot_be_leave_a_bound_as_it_is(never: float) -> None:
    """A clock that jumped, or an answer that never came, must not set the bound for all that follow."""
    bound = AdaptiveBound()
    bound.observe(1.0, 1.2, never)
    bound.observe(0.0, 0.0, 1.0)
    assert bound.seconds(1.0, 1.2) == 1.2
