"""Fit a device's own time against input length, from its latest inferences (CRIME 4.1, 4.3.2).

Observations are given as (length, seconds), one at a time. The paper's plain least squares over a sliding
window is available (`FitSettings(is_robust=False)`); the default tolerates outliers, follows a change of load
within a few inferences, and gives estimates from the first samples on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float64
from pliant.errors import RouteError
from pliant.ir.curve import Curve, line
from pliant.ir.times.piecewise import Quadratic, piecewise

_ENOUGH = 8
"""Minimum number of samples for a fit; fewer samples scale the prior."""
_GROUP = 6
_SHIFTED = 5
"""This many samples in a row on one side, by more than `_SHIFT`, mean another load, not outliers."""
_SHIFTED_LATE = 2
_SHIFT = 1.25
_NEAR = 3.5
_LEAST_S = 1e-9
_DOUBTS = 2.0
"""A fit of m samples must have a smaller error than the prior's by a factor above 1 + this / sqrt(m)."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """A window of `window` samples, refitted every `refit_every` (M_l); `degree` 2 for attention models."""

    window: int = 64
    refit_every: int = 16
    degree: int = 1
    is_robust: bool = True

    def __post_init__(self) -> None:
        if self.window < 2 or self.refit_every < 1 or self.degree not in (1, 2):
            raise RouteError(
                f"a fit of degree {self.degree} over {self.window} samples, every {self.refit_every}, cannot "
                "be: give degree 1 or 2, a window of 2 or more, and 1 or more."
            )


def least_squares(
    lengths: Sequence[float] | Float64[np.ndarray, " m"],
    seconds: Sequence[float] | Float64[np.ndarray, " m"],
    degree: int = 1,
) -> Quadratic:
    """The paper's fit: ordinary least squares of `degree` 1 or 2; flat if all lengths are equal."""
    n, t = np.asarray(lengths, np.float64), np.asarray(seconds, np.float64)
    return _solve(n, t, np.ones_like(n), degree, is_signed=True)


def robust_fit(
    lengths: Sequence[float] | Float64[np.ndarray, " m"],
    seconds: Sequence[float] | Float64[np.ndarray, " m"],
    degree: int = 1,
) -> tuple[Quadratic, float]:
    """Return (a fit robust to outliers, the typical relative distance of the samples from it).

    Initial fit: least squares through the medians of groups of neighbouring lengths, which hold while under
    half of a group is off. Then, twice, least squares of the *relative* error (times vary in proportion) over
    the samples within 3.5 robust deviations of the fit. No coefficient is negative, because a longer input
    never takes less.
    """
    n, t = np.asarray(lengths, np.float64), np.maximum(np.asarray(seconds, np.float64), _LEAST_S)
    fit, spread = _through_medians(n, t, degree), 0.0
    for _ in range(2):
        expected = np.maximum(_values(fit, n), _LEAST_S)
        off = np.abs(t / expected - 1.0)
        spread = 1.4826 * float(np.sort(off)[len(off) // 2])
        weights = 1.0 / expected**2
        weights[off > _NEAR * max(spread, 1e-6)] = 0.0
        fit = _solve(n, t, weights, degree)
    return fit, spread


def _through_medians(n: Float64[np.ndarray, " m"], t: Float64[np.ndarray, " m"], degree: int) -> Quadratic:
    """Return least squares of the relative error through medians of groups of neighbouring lengths."""
    order = np.argsort(n)
    groups = min(max(len(n) // _GROUP, degree + 1), len(n))
    size = len(n) // groups
    # if the groups do not divide the samples, each group drops some of its neighbours
    picks = np.linspace(0, len(n) - 1, groups * size).astype(np.intp)
    rows = order[picks].reshape(groups, size)
    middle = np.sort(t[rows], axis=1)[:, size // 2]
    return _solve(n[rows[:, size // 2]], middle, 1.0 / middle**2, degree)


class LocalTimes:
    """T_l(n) of one device, kept up to date (CRIME 4.3.2).

    `prior` is the curve before the first inference. It keeps its shape, scaled by the median of the samples'
    ratios, until there are samples of enough different lengths, and after that while a fit explains the
    samples no better: a few short inputs say nothing about long ones. Without a prior, few samples give an
    upper estimate without negative coefficients: constant below a single sampled length and proportional
    above it, or a constant and the highest power through several lengths.

    In robust mode, five inferences in a row that deviate by a quarter (or 2.5 times the usual distance) to
    the same side indicate another load: earlier samples are dropped, and the curve is scaled at once. Least
    squares over a window would follow a window later, and a robust fit without this rule even later.
    """

    def __init__(self, settings: FitSettings, max_n: int, prior: Curve | None = None) -> None:
        self._settings = settings
        self._max_n = max_n
        self._n = np.zeros(settings.window)
        self._s = np.zeros(settings.window)
        self._count = 0
        self._since_fit = 0
        self._run = 0
        self._patience = _SHIFTED
        self._base = prior
        self._spread: float | None = None
        self.curve: Curve | None = prior

    @property
    def is_in_doubt(self) -> bool:
        """Whether the latest inferences deviated, but were too few to replace the curve."""
        return self._run != 0 and self._patience < _SHIFTED

    def doubt(self) -> None:
        """Let fewer inferences replace the curve, because the earlier ones are old."""
        self._patience = _SHIFTED_LATE

    def add(self, n: int, seconds: float) -> bool:
        """Add an inference of length n >= 0; return whether `curve` changed."""
        if not 0.0 <= seconds < float("inf") or n < 0:
            raise RouteError(f"an inference of length {n} took {seconds} s; give a length and time >= 0.")
        at = self._count % self._settings.window
        self._n[at], self._s[at] = n, seconds
        self._count += 1
        self._since_fit += 1
        if self._settings.is_robust and self._has_shifted(n, seconds):
            self._forget_all_but(self._patience)
            return self._refit()
        # with few samples, each one counts
        if self._since_fit >= self._settings.refit_every or (
            self._count <= _ENOUGH and self._settings.is_robust
        ):
            return self._refit()
        return self.curve is None and self._refit()

    def _has_shifted(self, n: int, seconds: float) -> bool:
        """Return whether the last samples are all above, or all below, the curve, by more than they vary."""
        if self.curve is None or self._count < _ENOUGH:
            return False
        shift = max(_SHIFT, 1.0 + 2.5 * (self._spread or 0.0))
        ratio = seconds / max(self.curve.at(n), _LEAST_S)
        if ratio > shift:
            self._run = max(self._run, 0) + 1
        elif ratio * shift < 1.0:
            self._run = min(self._run, 0) - 1
        else:
            self._run, self._patience = 0, _SHIFTED
        return abs(self._run) >= self._patience

    def _forget_all_but(self, kept: int) -> None:
        window = self._settings.window
        last = [(self._count - kept + i) % window for i in range(min(kept, window))]
        n, s = self._n[last], self._s[last]
        self._n[: len(last)], self._s[: len(last)] = n, s
        self._count, self._run, self._base = len(last), 0, self.curve
        self._patience = _SHIFTED

    def _refit(self) -> bool:
        before, self._since_fit = self.curve, 0
        held = min(self._count, self._settings.window)
        n, s = self._n[:held], self._s[:held]
        degree = self._settings.degree
        if not self._settings.is_robust:
            self.curve = self._drawn(least_squares(n, s, degree))
        elif held >= _ENOUGH and _is_spread(n, degree):
            fit, self._spread = robust_fit(n, s, degree)
            self.curve = self._drawn(fit)
            if self._base is not None and (held < self._settings.window or _is_bound(fit)):
                known = self._scaled(n, s)
                if _error(known, n, s) <= (1.0 + _DOUBTS / held**0.5) * _error(self.curve, n, s):
                    self.curve = known
        else:
            self.curve = self._scaled(n, s)
        return self.curve != before

    def _drawn(self, fit: Quadratic) -> Curve:
        if self._settings.degree == 1 or fit.square_s == 0.0:
            return line(fit.constant_s, fit.linear_s, self._max_n)
        return piecewise(fit, self._max_n)

    def _scaled(self, n: Float64[np.ndarray, " m"], s: Float64[np.ndarray, " m"]) -> Curve:
        if self._base is None and _is_spread(n, degree=0):
            degree = self._settings.degree
            fit = _solve(n**degree, s, 1.0 / np.maximum(s, _LEAST_S) ** 2, degree=1)
            return self._drawn(fit if degree == 1 else Quadratic(fit.constant_s, 0.0, fit.linear_s))
        if self._base is None:
            at, middle = int(n[0]), float(np.median(s))
            if at < 1 or at >= self._max_n:
                return line(middle, 0.0, self._max_n)
            return Curve(((at, middle), (self._max_n, middle * self._max_n / at)))
        ratios = [t / max(self._base.at(m), _LEAST_S) for m, t in zip(n.tolist(), s.tolist(), strict=True)]
        ratio = float(np.median(ratios))
        return Curve(tuple((m, t * ratio) for m, t in self._base.points))


def _is_spread(n: Float64[np.ndarray, " m"], degree: int) -> bool:
    """Return whether lengths differ enough to determine one coefficient per degree."""
    low, high = float(n.min()), float(n.max())
    return high >= 1.25 * low + 1.0 and len(set(n.tolist())) > degree + 1


def _is_bound(fit: Quadratic) -> bool:
    """Return whether times do not increase with length."""
    return fit.linear_s == 0.0 and fit.square_s == 0.0


def _error(curve: Curve, n: Float64[np.ndarray, " m"], s: Float64[np.ndarray, " m"]) -> float:
    """Return the median relative distance of the samples from a curve."""
    expected = np.array([curve.at(round(m)) for m in n.tolist()])
    return float(np.median(np.abs(s / np.maximum(expected, _LEAST_S) - 1.0)))


def _values(fit: Quadratic, n: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " m"]:
    return fit.constant_s + n * (fit.linear_s + n * fit.square_s)


def _solve(
    n: Float64[np.ndarray, " m"],
    t: Float64[np.ndarray, " m"],
    weights: Float64[np.ndarray, " m"],
    degree: int,
    is_signed: bool = False,
) -> Quadratic:
    """Solve weighted least squares by normal equations on lengths scaled to 0..1.

    Coefficients are >= 0 unless signed: if one would be negative, the best fit without some of them is taken
    (there are at most three).
    """
    scale = float(n.max()) or 1.0
    u = n / scale
    if degree == 1:
        weighted = weights * u
        moments = [float(weights.sum()), float(weighted.sum()), float(weighted @ u)]
        right = [float(weights @ t), float(weighted @ t)]
        return _drawn_line(moments, right, scale, is_signed)
    powers = [weights]
    for _ in range(2 * degree):
        powers.append(powers[-1] * u)
    moments = [float(p.sum()) for p in powers]
    right = [float(p @ t) for p in powers[: degree + 1]]
    columns = tuple(range(degree + 1))
    solved = _normal(moments, right, columns)
    if not is_signed and min(solved) < 0.0:
        fits = [_normal(moments, right, s) for s in ((0, 1), (0, 2), (1, 2), (0,), (1,), (2,))]
        allowed = [f for f in fits if min(f) >= 0.0]
        # the sum of squares minus a constant: -b'x for a least-squares x
        solved = min(allowed, key=lambda f: -sum(a * b for a, b in zip(f, right, strict=True)))
    constant, linear, square = solved
    return Quadratic(constant, linear / scale, square / scale**2)


def _normal(moments: list[float], right: list[float], columns: tuple[int, ...]) -> list[float]:
    """Solve the normal equations of `columns` by Gaussian elimination; redundant columns get 0."""
    rows = [[moments[i + j] for j in columns] + [right[i]] for i in columns]
    size = len(rows)
    found = [0.0] * len(right)
    live: list[int] = []
    for k in range(size):
        pivot = rows[k][k]
        if pivot <= 1e-12 * moments[2 * columns[k]]:
            continue
        live.append(k)
        for i in range(k + 1, size):
            part = rows[i][k] / pivot
            rows[i] = [a - part * b for a, b in zip(rows[i], rows[k], strict=True)]
    for k in reversed(live):
        rest = sum(rows[k][j] * found[columns[j]] for j in live if j > k)
        found[columns[k]] = (rows[k][size] - rest) / rows[k][k]
    return found


def _drawn_line(moments: list[float], right: list[float], scale: float, is_signed: bool) -> Quadratic:
    """Return the two coefficients of a line in closed form, the most frequent case."""
    m, a, aa = moments
    varies = m * aa - a * a
    slope = (m * right[1] - a * right[0]) / varies if varies > 1e-12 * m * aa else 0.0
    constant = (right[0] - slope * a) / m
    if not is_signed and slope < 0.0:
        slope, constant = 0.0, right[0] / m
    elif not is_signed and constant < 0.0:
        slope, constant = right[1] / aa, 0.0
    return Quadratic(constant, slope / scale)
