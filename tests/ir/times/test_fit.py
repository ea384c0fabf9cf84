"""Local times against numpy's least squares, under outliers, load steps and cold starts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.curve import Curve, line
from pliant.ir.times.fit import FitSettings, LocalTimes, least_squares, robust_fit

MAX_N = 200


def sampled(seed: int, m: int = 64, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """T(n) = 5 ms + 2 ms n, with relative noise."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 80, m).astype(float)
    return n, (5e-3 + 2e-3 * n) * rng.normal(1.0, noise, m)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0.0, 5.0)), min_size=1, max_size=50),
    st.sampled_from([1, 2]),
)
def test_the_papers_fit_is_numpys(samples: list[tuple[int, float]], degree: int) -> None:
    """Ordinary least squares, by another way; where lengths are too few, what it says of those seen."""
    n, t = np.array([s[0] for s in samples], float), np.array([s[1] for s in samples])
    fit = least_squares(n, t, degree)
    scale = max(n.max(), 1.0)
    rows = np.stack([(n / scale) ** k for k in range(degree + 1)], axis=1)
    solved, *_ = np.linalg.lstsq(rows, t, rcond=None)
    # normal equations square the condition, which is below 500^2 for a line and 500^4 for degree 2 here
    assert [fit(x) for x in n] == pytest.approx(list(rows @ solved), abs=1e-6 if degree == 1 else 2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_outliers_do_not_move_the_robust_fit(seed: int) -> None:
    """10 % of inferences take ten times as long; least squares is far off, the robust fit within 4 %."""
    n, t = sampled(seed)
    rng = np.random.default_rng(seed + 100)
    t[rng.permutation(len(t))[:6]] *= 10.0
    fit, spread = robust_fit(n, t)
    plain = least_squares(n, t)
    for at in (5, 40, 80):
        assert fit(at) == pytest.approx(5e-3 + 2e-3 * at, rel=0.04)
    assert max(abs(plain(at) / (5e-3 + 2e-3 * at) - 1) for at in (5, 40, 80)) > 0.2
    assert 0.01 < spread < 0.04


@pytest.mark.parametrize("seed", range(3))
def test_a_robust_quadratic_is_met_too(seed: int) -> None:
    """Attention's square term under the same outliers; 5 %, as three coefficients share the noise."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 500, 64).astype(float)
    t = (2e-3 + 5e-5 * n + 1e-7 * n**2) * rng.normal(1.0, 0.02, 64)
    t[rng.permutation(64)[:6]] *= 10.0
    fit, _ = robust_fit(n, t, 2)
    for at in (20, 250, 500):
        assert fit(at) == pytest.approx(2e-3 + 5e-5 * at + 1e-7 * at**2, rel=0.05)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(1e-6, 1.0)), min_size=1, max_size=40), st.integers(1, 2)
)
def test_no_robust_coefficient_is_negative(samples: list[tuple[int, float]], degree: int) -> None:
    """No input takes less for being longer, and none takes less than nothing."""
    fit, _ = robust_fit([s[0] for s in samples], [s[1] for s in samples], degree)
    assert min(fit.constant_s, fit.linear_s, fit.square_s) >= 0.0


def filled(times: LocalTimes, slope: float, m: int, seed: int = 0) -> LocalTimes:
    rng = np.random.default_rng(seed)
    for n in rng.integers(1, 80, m):
        times.add(int(n), (5e-3 + slope * float(n)) * float(rng.normal(1.0, 0.02)))
    return times


def off(times: LocalTimes, slope: float) -> float:
    assert times.curve is not None
    return max(abs(times.curve.at(n) / (5e-3 + slope * n) - 1.0) for n in (5, 20, 40, 80))


def test_a_load_step_is_followed_within_a_few_inferences() -> None:
    """The gateway's seven further tasks: after eight inferences the curve is within 15 %."""
    ours = filled(LocalTimes(FitSettings(), MAX_N), 2e-3, 100)
    papers = filled(LocalTimes(FitSettings(is_robust=False), MAX_N), 2e-3, 100)
    assert off(ours, 2e-3) < 0.03
    for times in (ours, papers):
        filled(times, 8e-3, 8, seed=1)
    assert off(ours, 8e-3) < 0.15
    assert off(papers, 8e-3) > 0.5
    filled(ours, 2e-3, 8, seed=2)
    assert off(ours, 2e-3) < 0.15


@pytest.mark.parametrize("seed", range(10))
def test_a_few_short_inputs_after_a_shift_say_nothing_of_long_ones(seed: int) -> None:
    """A line through ten noisy times of short inputs may be flat: long ones would all be sent here."""
    rng = np.random.default_rng(seed)
    times = LocalTimes(FitSettings(), MAX_N)
    for n in rng.integers(1, 80, 64):
        times.add(int(n), 0.1 + 2e-3 * float(n))
    for n in rng.integers(3, 9, 40):
        times.add(int(n), 1.5 * (0.1 + 2e-3 * float(n)) * rng.lognormal(0.0, 0.15))
        assert times.curve is not None
    assert times.curve.at(80) == pytest.approx(1.5 * (0.1 + 2e-3 * 80), rel=0.15)


def test_a_shape_that_samples_contradict_is_given_up() -> None:
    """The prior was of another device: its call is dear and its slope small."""
    rng = np.random.default_rng(0)
    times = LocalTimes(FitSettings(), MAX_N, line(0.1, 1e-4, MAX_N))
    for n in rng.integers(1, 80, 40):
        times.add(int(n), (5e-3 + 2e-3 * float(n)) * rng.normal(1.0, 0.05))
    assert times.curve is not None
    for at in (2, 40, 150):
        assert times.curve.at(at) == pytest.approx(5e-3 + 2e-3 * at, rel=0.1)


def test_outliers_in_a_stream_do_not_move_the_curve() -> None:
    """One in ten takes ten times as long, at random: that is not another load."""
    rng = np.random.default_rng(3)
    times = filled(LocalTimes(FitSettings(), MAX_N), 2e-3, 64)
    for n in rng.integers(1, 80, 400):
        slow = 10.0 if rng.random() < 0.1 else 1.0
        times.add(int(n), (5e-3 + 2e-3 * float(n)) * slow)
        assert off(times, 2e-3) < 0.1


def test_one_inference_scales_the_prior() -> None:
    """Cold start: the shape is known, the speed is not."""
    times = LocalTimes(FitSettings(), MAX_N, line(1.0, 1.0, MAX_N))
    assert times.add(9, 5.0)
    assert times.curve is not None
    assert times.curve.at(99) == pytest.approx(50.0)


def test_one_length_without_a_prior_says_the_most_it_can_be() -> None:
    """With coefficients that are not negative: level below, in proportion above."""
    times = LocalTimes(FitSettings(), MAX_N)
    assert times.curve is None
    times.add(10, 2.0)
    assert times.curve == Curve(((10, 2.0), (MAX_N, 40.0)))
    for _ in range(40):
        times.add(10, 3.0)
    assert times.curve is not None
    assert times.curve.at(10) == pytest.approx(3.0)


def test_two_lengths_without_a_prior_are_a_line_or_a_parabola() -> None:
    """As much as a slow device learns before somebody asks; times are the same, or rise, with length."""
    times = LocalTimes(FitSettings(), 500)
    times.add(1, 0.040)
    times.add(64, 0.103)
    assert times.curve is not None
    assert [times.curve.at(n) for n in (1, 64, 400)] == pytest.approx([0.040, 0.103, 0.439])
    curved = LocalTimes(FitSettings(degree=2), 500)
    curved.add(1, 0.040)
    curved.add(64, 0.103)
    assert curved.curve is not None
    assert curved.curve.at(64) == pytest.approx(0.103, rel=0.01)
    assert curved.curve.at(400) == pytest.approx(0.040 + 0.063 * 400**2 / 64**2, rel=0.02)
    flat = LocalTimes(FitSettings(degree=2), 500)
    flat.add(1, 0.040)
    flat.add(64, 0.030)
    assert flat.curve is not None
    assert 0.030 <= flat.curve.at(1) == flat.curve.at(500) <= 0.040


def test_refits_come_every_so_many_inferences() -> None:
    """M_l of CRIME 4.3.2: the curve is the same object in between."""
    times = filled(LocalTimes(FitSettings(refit_every=16), MAX_N), 2e-3, 64)
    changes = [times.add(10, 0.025) for _ in range(32)]
    assert sum(changes) <= 2


def test_after_a_long_while_two_inferences_replace_what_was() -> None:
    """What is old is doubted."""
    times = filled(LocalTimes(FitSettings(), MAX_N), 8e-3, 64)
    times.doubt()
    times.add(40, 5e-3 + 2e-3 * 40)
    assert times.is_in_doubt
    times.add(20, 5e-3 + 2e-3 * 20)
    assert off(times, 2e-3) < 0.2


@pytest.mark.parametrize("sample", [(3, -1.0), (3, float("nan")), (3, float("inf")), (-1, 1.0)])
def test_what_is_no_sample_is_refused(sample: tuple[int, float]) -> None:
    """It would stay in the window for long."""
    with pytest.raises(RouteError):
        LocalTimes(FitSettings(), MAX_N).add(*sample)


@pytest.mark.parametrize("bad", [{"window": 1}, {"refit_every": 0}, {"degree": 3}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, int]) -> None:
    """Before a node starts."""
    with pytest.raises(RouteError):
        FitSettings(**bad)  # type: ignore[arg-type]
