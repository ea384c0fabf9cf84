"""Curves against brute force at every integer length."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import PeerCurveError, ProfileError
from pliant.ir.curve import (
    MAX_POINTS,
    MAX_SECONDS,
    Curve,
    line,
    max_excess,
    minimum,
    parse_curve,
    thin,
)

seconds = st.floats(0.0, 10.0, allow_nan=False).map(lambda t: round(t, 6))


@st.composite
def curves(draw: st.DrawFn, top: int = 60, max_points: int = 6) -> Curve:
    lengths = sorted(draw(st.sets(st.integers(0, top), min_size=1, max_size=max_points)))
    return Curve(tuple((n, draw(seconds)) for n in lengths))


def test_a_curve_is_linear_between_points_level_before_and_goes_on_after() -> None:
    """The three parts of the definition, by hand."""
    curve = Curve(((2, 1.0), (4, 2.0), (8, 8.0)))
    assert [curve.at(n) for n in (0, 2, 3, 4, 6, 8, 10)] == [1.0, 1.0, 1.5, 2.0, 5.0, 8.0, 11.0]


def test_a_curve_never_falls_beyond_its_last_point() -> None:
    """Else a long enough input would take less than nothing."""
    assert Curve(((0, 2.0), (10, 1.0))).at(1000) == 1.0


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((3, 1.0), (3, 2.0)),
        ((4, 1.0), (3, 2.0)),
        ((-1, 1.0),),
        ((0, -1.0),),
        ((0, math.nan),),
        ((0, math.inf),),
    ],
)
def test_a_curve_that_cannot_be_is_not_built(points: tuple[tuple[int, float], ...]) -> None:
    """Nobody checks again."""
    with pytest.raises(ProfileError, match="measure again"):
        Curve(points)


@given(curves(), st.floats(0, 5), st.floats(0, 1))
def test_adding_a_line_adds_it_at_every_length(curve: Curve, fixed: float, per_item: float) -> None:
    """Before the first point and beyond the last too."""
    more = curve.plus(fixed, per_item)
    for n in range(140):
        assert more.at(n) == pytest.approx(curve.at(n) + fixed + per_item * n, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("per_item", [0.0, 0.5])
def test_adding_to_the_slowest_curve_that_can_be_gives_one_that_can_be(per_item: float) -> None:
    """A peer may tell of it, and the way there comes on top."""
    more = parse_curve([[0, 1.0], [5, MAX_SECONDS]]).plus(0.05, per_item)
    assert more.points[0] == (0, 1.05)
    assert max(seconds for _, seconds in more.points) == MAX_SECONDS


@given(st.floats(-5, 5), st.floats(-1, 1), st.integers(0, 50))
def test_a_line_is_one_where_it_is_not_negative(intercept: float, slope: float, max_n: int) -> None:
    """A least-squares line may start below zero; time does not."""
    curve = line(intercept, slope, max_n)
    for n in range(max_n + 1):
        assert curve.at(n) == pytest.approx(max(0.0, intercept + slope * n), rel=1e-9, abs=1e-9)


@given(st.lists(curves(), min_size=1, max_size=9), st.integers(0, 80))
def test_the_minimum_is_exact_at_every_integer(some: list[Curve], max_n: int) -> None:
    """Breakpoints, not samples: no length is off, and none is missing near a crossing."""
    least = minimum(some, max_n)
    for n in range(max_n + 1):
        # 2e-12: points on a straight line are left out where they lie within 1e-12 of it; sums of 1e-16 rest
        assert least.at(n) == pytest.approx(min(c.at(n) for c in some), rel=2e-11, abs=1e-12)


def test_a_crossing_between_integers_gives_both_of_them() -> None:
    """5 + n and 2n + 0.5 cross at 4.5."""
    least = minimum([line(5.0, 1.0, 100), line(0.5, 2.0, 100)], 100)
    assert least.points == ((0, 0.5), (4, 8.5), (5, 10.0), (100, 105.0))


def test_straight_pieces_are_not_cut() -> None:
    """The minimum of lines has a point pair a crossing and the ends, however often it is taken again."""
    lines = [line(0.0, 4.0, 512), line(5.0, 2.0, 512), line(30.0, 0.5, 512)]
    once = minimum(lines, 512)
    assert len(once.points) == 6
    assert minimum([once, *lines], 512).points == once.points


@given(curves(), curves(), st.integers(0, 80), st.floats(0, 0.5))
def test_the_largest_difference_is_that_of_all_lengths(a: Curve, b: Curve, max_n: int, ratio: float) -> None:
    """What T_th is held against."""
    gaps = [abs(a.at(n) - b.at(n)) for n in range(max_n + 1)]
    assert max_excess(a, b, max_n, 0.0) == pytest.approx(max(gaps), rel=1e-9, abs=1e-9)
    over = [g - ratio * min(a.at(n), b.at(n)) for n, g in enumerate(gaps)]
    assert max_excess(a, b, max_n, ratio) == pytest.approx(max(over), rel=1e-9, abs=1e-9)


@given(curves(max_points=12), st.integers(2, 8))
def test_thinning_keeps_ends_and_bound(curve: Curve, most: int) -> None:
    """A curve for the wire has few points, those of the curve."""
    fewer = thin(curve, most)
    assert len(fewer.points) <= max(most, min(2, len(curve.points)))
    assert set(fewer.points) <= set(curve.points)
    assert fewer.points[0] == curve.points[0]
    assert fewer.points[-1] == curve.points[-1]


@given(curves())
def test_a_sound_curve_from_the_wire_is_taken(curve: Curve) -> None:
    """As lists or tuples, with whole seconds too."""
    assert parse_curve([list(p) for p in curve.points]) == curve
    assert parse_curve([(0, 1)]) == Curve(((0, 1.0),))


@pytest.mark.parametrize(
    "points",
    [
        None,
        {},
        "ab",
        [],
        [[n, 1.0] for n in range(MAX_POINTS + 1)],
        [[1]],
        [[1, 2.0, 3.0]],
        [1, 2],
        [["1", 2.0]],
        [[1.0, 2.0]],
        [[True, 2.0]],
        [[1, True]],
        [[1, None]],
        [[2, 1.0], [1, 1.0]],
        [[1, 1.0], [1, 2.0]],
        [[-1, 1.0]],
        [[2**31, 1.0]],
        [[0, -1e-9]],
        [[0, math.nan]],
        [[0, math.inf]],
        [[0, 1e300]],
        [[0, 10**400]],
    ],
)
def test_a_curve_from_the_wire_that_cannot_be_is_refused(points: object) -> None:
    """A lying peer costs itself its place, never a crash."""
    with pytest.raises(PeerCurveError):
        parse_curve(points)
