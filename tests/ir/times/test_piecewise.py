"""Pieces within a tolerance, and as few as there can be."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.curve import Curve, line
from pliant.ir.times.piecewise import Quadratic, piecewise

part = st.floats(0.0, 1.0).map(lambda x: round(x, 4))


def worst(curve: Curve, f: object, max_n: int) -> float:
    return max(abs(curve.at(n) / f(n) - 1.0) for n in range(max_n + 1))  # type: ignore[operator]


@given(part, part, part, st.integers(2, 600), st.sampled_from([0.001, 0.01, 0.1]))
@settings(max_examples=60)
def test_a_quadratic_is_met_within_the_tolerance(
    a: float, b: float, c: float, max_n: int, tolerance: float
) -> None:
    """At every length; the ends are those of the range."""
    f = Quadratic(a + 1e-3, b, c)
    curve = piecewise(f, max_n, tolerance)
    assert worst(curve, f, max_n) <= tolerance * (1 + 1e-9)
    assert (curve.points[0][0], curve.points[-1][0]) == (0, max_n)


@given(part, part, part, st.integers(2, 40))
@settings(max_examples=30)
def test_both_ways_take_equally_many_pieces(a: float, b: float, c: float, max_n: int) -> None:
    """The closed form of a quadratic, and the general way on the same times."""
    f = Quadratic(a + 1e-3, b, c)
    assert len(piecewise(f, max_n, 0.05).points) == max(2, len(piecewise(lambda n: f(n), max_n, 0.05).points))


@given(part, part, part, st.integers(3, 12))
@settings(max_examples=25)
def test_no_fewer_pieces_would_do(a: float, b: float, c: float, max_n: int) -> None:
    """Brute force: every choice of fewer knots is infeasible as a linear program."""
    f = Quadratic(a + 1e-3, b, 3.0 * c)
    found = piecewise(f, max_n, 0.02)
    fewer = len(found.points) - 1
    if fewer >= 2:
        assert not any(
            _feasible([0, *inner, max_n], f, max_n, 0.02)
            for inner in combinations(range(1, max_n), fewer - 2)
        )


def _feasible(knots: list[int], f: Quadratic, max_n: int, tolerance: float) -> bool:
    """Whether values at `knots` exist whose line stays inside the corridor (highspy)."""
    import highspy

    solver = highspy.Highs()
    solver.silent()
    values = [solver.addVariable(0.0, highspy.kHighsInf) for _ in knots]
    for i, (a, b) in enumerate(pairwise(knots)):
        for n in range(a, b + 1):
            at = values[i] * ((b - n) / (b - a)) + values[i + 1] * ((n - a) / (b - a))
            # relative, so that the solver's tolerance of 1e-7 is small beside 2 %
            solver.addConstr(at * (1.0 / f(n)) <= 1.0 + tolerance - 1e-6)
            solver.addConstr(at * (1.0 / f(n)) >= 1.0 - tolerance + 1e-6)
    solver.solve()
    return bool(solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=60), st.sampled_from([0.01, 0.1, 0.5]))
def test_any_times_are_met_within_the_tolerance(times: list[float], tolerance: float) -> None:
    """Jagged ones too: measured buckets, a cluster that changes its mode."""
    curve = piecewise(times.__getitem__, len(times) - 1, tolerance)
    assert worst(curve, times.__getitem__, len(times) - 1) <= tolerance * (1 + 1e-9)


def test_attention_takes_few_points() -> None:
    """A transformer's curve up to 512 tokens fits the wire many times over."""
    assert len(piecewise(Quadratic(2e-3, 5e-5, 1e-7), 512).points) <= 6
    assert len(piecewise(lambda n: 1e-3 * math.sqrt(n + 1), 512).points) <= 12


def test_a_line_is_sent_as_it_is() -> None:
    """Without using the tolerance."""
    assert piecewise(Quadratic(1.0, 0.5), 100) == line(1.0, 0.5, 100)
    assert piecewise(Quadratic(1.0, 0.5, 0.25), 1).at(1) == pytest.approx(1.75)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_times_that_are_none_are_refused(bad: float) -> None:
    """A profile with a hole in it."""
    with pytest.raises(RouteError, match="length 3"):
        piecewise(lambda n: bad if n == 3 else 1.0, 5)
    with pytest.raises(RouteError, match="within"):
        piecewise(lambda n: 1.0, 5, 1.5)
