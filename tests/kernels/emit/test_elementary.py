"""Elementary functions against numpy's in float64: both precisions, special values, all sizes."""

import math

import numpy as np
import pytest

from pliant.kernels.emit.expression import leaf
from pliant.kernels.runtime.jit import Library
from tests.kernels.rows.test_map import evaluate, prepare

_NAMES = {"ln": "log", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"} | {
    f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan")
}
RANGES = {
    "exp": (-700, 700),
    "expm1": (-40, 40),
    "ln": (1e-300, 1e300),
    "log1p": (-0.999, 1e6),
    "tanh": (-25, 25),
    "sin": (-1e4, 1e4),
    "cos": (-1e4, 1e4),
    "tan": (-1e4, 1e4),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atan": (-100, 100),
    "sinh": (-80, 80),
    "cosh": (-80, 80),
    "asinh": (-1e6, 1e6),
    "acosh": (1, 1e6),
    "atanh": (-0.9999, 0.9999),
    "sqrt": (0, 1e30),
    "round": (-1e6, 1e6),
    "floor": (-1e6, 1e6),
    "ceil": (-1e6, 1e6),
}


_OTHERS = ("erf", "sigmoid", "softplus", "gelu", "gelu_tanh")


@pytest.fixture(autouse=True, scope="module")
def _compiled(library: Library) -> None:
    """All functions of this file compiled at once."""
    for dtype in ("float32", "float64"):
        prepare(library, [leaf(0, dtype).to(name) for name in (*RANGES, *_OTHERS)], "c")


def _numpy(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(getattr(np, _NAMES.get(name, name))(x.astype(np.float64)))


def _samples(low: float, high: float) -> np.ndarray:
    """Even, and on a logarithmic scale from both ends' size down to 1e-30."""
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(np.log(1e-30), np.log(max(abs(low), abs(high))), 2000))
    x = np.concatenate([rng.uniform(low, high, 3000), size, -size, [0.0, -0.0, low, high]])
    return x[(x >= low) & (x <= high)]


@pytest.mark.parametrize("name", RANGES)
def test_float64_is_good_to_twelve_digits(library: Library, name: str) -> None:
    """Relative to the value, or to 1e-12 of the argument's last digit where a sine crosses zero."""
    x = _samples(*RANGES[name])
    slack = 1e-11 if name in ("sin", "cos", "tan") else 1e-300
    y = evaluate(library, leaf(0, "float64").to(name), x)
    np.testing.assert_allclose(y, _numpy(name, x), rtol=2e-12, atol=slack)


@pytest.mark.parametrize("name", RANGES)
def test_float32_is_good_to_six_digits(library: Library, name: str) -> None:
    """Of the float32 argument as it is; below the normal floats a result may be 0."""
    low, high = RANGES[name]
    x = _samples(max(low, -80 if "exp" in name else -3e38), min(high, 80 if "exp" in name else 3e38))
    x = x.astype(np.float32)
    y = evaluate(library, leaf(0, "float32").to(name), x)
    np.testing.assert_allclose(y, _numpy(name, x), rtol=1e-6, atol=1.2e-38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*RANGES, *_OTHERS])
def test_special_values_are_numpys(library: Library, name: str, dtype: str) -> None:
    """NaN, both infinities and arguments outside the domain. (exp is 0 at the negative end.)"""
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -2.0, 2.0], dtype)
    y = evaluate(library, leaf(0, dtype).to(name), x)
    if name in RANGES:
        np.testing.assert_allclose(y, _numpy(name, x), rtol=1e-6)
        return
    ends = {
        "erf": (1, -1),
        "sigmoid": (1, 0),
        "softplus": (np.inf, 0),
        "gelu": (np.inf, 0),
        "gelu_tanh": (np.inf, 0),
    }
    assert np.isnan(y[0])
    if dtype == "float32" or "gelu" not in name:  # 0 * inf is NaN by the formula, 0 in the limit
        np.testing.assert_allclose(y[1:3], ends.get(name, (np.inf, 0)), atol=1e-30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_sigmoid_and_softplus(library: Library, dtype: str) -> None:
    """Small erf and large negative sigmoids and softplus keep their relative accuracy."""
    x = np.concatenate([np.linspace(-7, 7, 301), [1e-20, 1e-5, -30, 30, 80, -80]]).astype(dtype)
    wide = x.astype(np.float64)
    exact = {
        "erf": np.array([math.erf(v) for v in wide]),
        "sigmoid": 1 / (1 + np.exp(-wide)),
        "softplus": np.logaddexp(0, wide),
    }
    rtol = 1e-6 if dtype == "float32" else 1e-12
    for name, wanted in exact.items():
        y = evaluate(library, leaf(0, dtype).to(name), x)
        np.testing.assert_allclose(y, wanted, rtol=rtol, atol=1e-38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_are_those_of_c(library: Library, dtype: str) -> None:
    """Signs, zeros, whole and broken exponents, infinities, NaN."""
    numbers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, 3.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 10.0]
    x, y = (v.ravel().astype(dtype) for v in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float64) ** y.astype(np.float64)
    z = evaluate(library, leaf(0, dtype).with_("pow", leaf(1, dtype)), x, y)
    np.testing.assert_allclose(z, wanted, rtol=1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(library: Library, dtype: str) -> None:
    """A quotient of a billion too: fmod has no rounding at all."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(999) * 10.0 ** rng.uniform(-3, 9, 999)).astype(dtype)
    y = (rng.standard_normal(999) * 10.0 ** rng.uniform(-1, 1, 999)).astype(dtype)
    x[:8], y[:8] = [1, 1, np.inf, 5, -5, 5, np.nan, 6], [0, np.inf, 1, -np.inf, 3, -3, 1, 3]
    with np.errstate(all="ignore"):
        rest, modulo = np.fmod(x, y), np.mod(x, y)
    a, b = leaf(0, dtype), leaf(1, dtype)
    exact = {"rtol": 0} if dtype == "float32" else {"rtol": 1e-7, "atol": 1e-6}
    np.testing.assert_allclose(evaluate(library, a.with_("fmod", b), x, y), rest, **exact)
    finite = np.isfinite(x) & np.isfinite(y)
    z = evaluate(library, a.with_("mod", b), x, y)[finite]
    np.testing.assert_allclose(z, modulo[finite], rtol=1e-6, atol=1e-6)
