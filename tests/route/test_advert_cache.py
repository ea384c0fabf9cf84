"""Adverts of many ways: the least of all curves, made quickly, beside brute force over every length."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ACCURACY_TOLERANCE, NO_ANSWER_S, RESOLUTION, ServiceLevel
from pliant.route.advert_cache import AdvertCache, advert_of
from pliant.route.choice.candidate import Candidate
from pliant.route.curve_advert import MAX_LEVELS
from pliant.route.node_messages import decode_advert, encode_advert
from pliant.route.way_times import DENSE, FEW, WayCurve, lower_envelope

MAX_N = 60


def curve(seed: int, n_points: int = 8, max_n: int = MAX_N) -> Curve:
    rng = np.random.default_rng(seed)
    lengths = [0, *sorted(rng.choice(np.arange(1, max_n), n_points - 2, replace=False).tolist()), max_n]
    seconds = np.cumsum(rng.uniform(0.0, 1.0, n_points))
    return Curve(tuple(zip(lengths, seconds.tolist(), strict=True)))


def way(seed: int) -> WayCurve:
    rng = np.random.default_rng(seed)
    return WayCurve(curve(seed), float(rng.uniform(0, 2)), float(rng.choice([0.0, 0.01])))


def least_at(ways: Sequence[WayCurve], n: int) -> float:
    return min(w.curve.at(n) + w.fixed_s + w.per_item_s * n for w in ways)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True), st.data())
def test_the_least_of_many_ways_is_exact_at_every_length(seeds: list[int], data: st.DataObject) -> None:
    """However many there are: few are compared piece by piece, many at all lengths at once."""
    ways = [way(seed) for seed in seeds]
    first = data.draw(st.integers(1, len(ways)))
    counts = sorted({first, len(ways)})
    (found,), _ = lower_envelope([ways], counts, MAX_N)
    for count, made in zip(counts, found, strict=True):
        _, touching = lower_envelope([ways[:count]], [count], MAX_N)
        for n in range(MAX_N + 1):
            assert made.at(n) == pytest.approx(least_at(ways[:count], n), rel=1e-9)
        for one, is_least in zip(ways[:count], touching, strict=True):
            gaps = [
                one.curve.at(n) + one.fixed_s + one.per_item_s * n - least_at(ways[:count], n)
                for n in range(MAX_N + 1)
            ]
            if min(gaps) > 1e-6:
                assert not is_least
            if count > FEW and min(gaps) <= 0.0:
                assert is_least


@pytest.mark.parametrize("max_n", [2, 5, 20, 31])
def test_ways_that_were_timed_at_other_lengths_are_compared_at_all(max_n: int) -> None:
    """Before the first point, between points, at them, and beyond the last."""
    points = ((3, 0.5), (7, 0.25), (20, 1.0))
    ways = [WayCurve(Curve(points[i % 3 :]), 0.1 * abs(i - 4), 0.01 * i) for i in range(FEW + 3)]
    (found,), _ = lower_envelope([ways], [1, 3, len(ways)], max_n)
    for count, made in zip([1, 3, len(ways)], found, strict=True):
        for n in range(max_n + 1):
            assert made.at(n) == pytest.approx(least_at(ways[:count], n), rel=1e-9)


def test_long_inputs_have_adverts_too() -> None:
    """No row of all lengths is made for models that take millions of items."""
    max_n = 50 * DENSE
    ways = [WayCurve(curve(seed, max_n=max_n), 0.1 * seed, 0.0) for seed in range(FEW + 3)]
    ((made,),), _ = lower_envelope([ways], [len(ways)], max_n)
    for n in np.random.default_rng(0).integers(0, max_n, 500).tolist():
        assert made.at(n) == pytest.approx(least_at(ways, n), rel=1e-9)


@pytest.mark.parametrize("n_ways", [2, 40])
def test_an_advert_leaves_out_the_ways_behind_who_asks(n_ways: int) -> None:
    """And names all nodes that it depends on, however many ways there are."""
    ways = [
        Candidate(f"n{i}", (ServiceLevel(curve(i), 0.8), ServiceLevel(curve(i).plus(1.0), 0.9 + 0.001 * i)))
        for i in range(n_ways)
    ]
    adverts = AdvertCache("me", 1, MAX_N, lambda name: frozenset({name}))
    whole, _ = adverts.get(None, ways)
    asker = sorted(whole.through - {"me"})[0]
    told, others = adverts.get(asker, ways)
    assert asker in whole.through
    assert asker not in told.through
    assert asker not in {other.name for other in others}
    for n in range(0, MAX_N + 1, 7):
        best = max(level.quality for other in others for level in other.levels)
        least = min(level.curve.at(n) for o in others for level in o.levels if level.quality >= best)
        assert told.curve.at(n) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("n_ways", [2, 9])
def test_an_advert_has_the_memory_of_its_ways(n_ways: int) -> None:
    """At each length only the ways that have memory for it count; where none has, nodes below are told."""
    most = [5 + 6 * i for i in range(n_ways)]
    ways = [
        Candidate(
            f"n{i}",
            tuple(
                ServiceLevel(curve(i).plus(extra), q).limited(most[i])
                for extra, q in ((0.0, 0.8), (1.0, 0.9))
            ),
            0.01 * i,
        )
        for i in range(n_ways)
    ]
    told, _ = decode_advert(
        encode_advert(advert_of("me", ways, lambda name: frozenset({name}), MAX_N, (1, 1)))
    )
    for level in told.levels:
        assert level.most_n == most[-1]
        for n in range(most[-1] + 1):
            least = min(
                way.fixed_s + own.curve.at(n)
                for way, most_n in zip(ways, most, strict=True)
                for own in way.levels
                if n <= most_n and own.quality >= level.quality
            )
            is_exact = level is told.levels[-1]  # the other levels are thinned
            assert (
                level.curve.at(n) == pytest.approx(least, rel=1e-6) if is_exact else level.curve.at(n) < 100.0
            )
        assert all(level.curve.at(n) >= NO_ANSWER_S for n in range(most[-1] + 1, MAX_N + 1))


@given(
    st.lists(st.floats(0.5, 0.9), min_size=1, max_size=12, unique=True),
    st.lists(st.floats(0.0, RESOLUTION), max_size=4),
)
def test_an_advert_has_the_quickest_answer_that_is_as_good_as_the_best(
    others: list[float], below: list[float]
) -> None:
    """Of many levels four are told; requests with deadlines are answered at the least within `RESOLUTION`."""
    qualities = sorted({*others, *(max(others) - less for less in below)})
    levels = tuple(ServiceLevel(Curve(((0, quality),)), quality) for quality in qualities)
    advert = advert_of("me", [Candidate("local", levels)], lambda name: frozenset(), MAX_N, (1, 1))
    told = [level.accuracy for level in advert.levels]
    alike = min(
        quality for quality in qualities if quality >= qualities[-1] - RESOLUTION - ACCURACY_TOLERANCE
    )
    assert len(told) == min(len(qualities), MAX_LEVELS)
    assert {qualities[0], alike, qualities[-1]} <= {*told}
    assert told == sorted(told)
