"""The three devices' times: reconstructed from the paper's text, or measured here and dilated.

The paper's data and the derived values (`reconstructed`):
- Figure 3's regression scores: a line's R² = 1 - MSE / variance, so that the slopes of end node, gateway and
cloud, for any measured lengths, have the ratios of sqrt(MSE / (1 - R²)): 1 to 0.415 to 0.0218.
- Figure 10 (a): at 200 ms SNLI's total falls by 19 % and 10 % against end node and cloud. These two fix the
  end node's slope and constant, given our lengths; the cloud has no constant.
- Figure 3's break-evens, 4 and 11, fix the two round trips of that figure, with the ratio of the gateway's
constant to the end node's equal to that of the slopes (free).
- Table 2 gives means relative to the end node's: the gateway alone takes 0.685 of it on SNLI, of which 0.415
is computation, so Bluetooth takes 0.270, and GW to cloud 0.571.
- Table 2 on SNLI_200: 0.565 of the end node's time, the gateway's and the cloud's as for SNLI (their GPUs are
  bound by launches). On IMDB, with the same links: the end node 0.36 of SNLI's mean (Table 1 says 0.377,
  Table 2 0.350), the gateway 2.44 times that, the cloud 0.05 of SNLI's mean.
- Spreads: residuals of Figure 3's fits, relative to the time: 2.7, 2.2 and 6.1 %. Load: Figure 6's scores
give 3.49 times the slope with eight concurrent inferences; Table 2 alone would give 3.39.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
from pliant.ir.curve import Curve, line
from research.world import Device, SlowPeriod

MODELS = {"SNLI": "CoVe-300", "SQuAD": "CoVe-300", "SNLI_200": "CoVe-200", "IMDB": "IMDB"}
"""The model of each test."""
LEVELS = ("end", "gateway", "cloud")
MAX_WORDS = {"CoVe-300": 64, "CoVe-200": 64, "IMDB": 2600}
_SCORES = {"end": (6.08e-4, 0.997), "gateway": (6.98e-5, 0.998), "cloud": (1.45e-6, 0.985)}
_SLOPES = {level: sqrt(mse / (1 - r2)) for level, (mse, r2) in _SCORES.items()}
GATEWAY, CLOUD = (_SLOPES[level] / _SLOPES["end"] for level in ("gateway", "cloud"))
_SPREADS = {"end": 0.027, "gateway": 0.022, "cloud": 0.061}
LOADED = sqrt((6.96e-4 / (1 - 0.998)) / (5.71e-5 / (1 - 0.998)))
"""Figure 6: the time of eight concurrent inferences relative to one."""
BLE_PART, FAR_PART = 0.270, 0.571
"""Round trips of Table 2's links, in units of the end node's mean on SNLI."""
_RTT_S, _VS_END, _VS_CLOUD = 0.2, 0.19, 0.10
_BANDWIDTH_BPS = 250e3
_SHORT, _LONG = 4, 11


@dataclass(frozen=True, slots=True)
class Devices:
    """A set of curves: by model and level; `ble_s` is the mean round trip of its Bluetooth-like link."""

    name: str
    curves: Mapping[str, Mapping[str, Curve]]
    factors: Mapping[str, tuple[tuple[int, tuple[float, ...]], ...]]
    ble_s: float
    loaded: float
    near_s: float
    far_s: float
    """Figure 3's round trips, end node to gateway and gateway to cloud."""

    def device(self, model: str, level: str, name: str | None = None, is_loaded: bool = False) -> Device:
        """The device; with `is_loaded` it is slower from half of the inputs on."""
        spells = (SlowPeriod(0.5, 1.0, self.loaded),) if is_loaded else ()
        spread = 0.0 if self.factors else _SPREADS[level]
        return Device(name or level, self.curves[model][level], spread, spells, self.factors.get(model, ()))


def reconstructed(snli: Sequence[int] | np.ndarray, imdb: np.ndarray | None) -> Devices:
    """Curves from the paper's text, for our lengths of SNLI and IMDB."""
    n = np.asarray(snli, float)
    slope_s, fixed_s = _end_node(n)
    mean_s = fixed_s + slope_s * float(n.mean())
    ends = {"end": 1.0, "gateway": GATEWAY, "cloud": CLOUD}
    cove = {
        level: line(0.0 if level == "cloud" else fixed_s * part, slope_s * part, MAX_WORDS["CoVe-300"])
        for level, part in ends.items()
    }
    smaller = {**cove, "end": Curve(tuple((m, 0.565 * t) for m, t in cove["end"].points))}
    words = 230.0 if imdb is None else float(imdb.mean())
    parts = {"end": 0.36, "gateway": 0.36 * 2.44, "cloud": 0.05}
    reviews = {level: line(0.0, part * mean_s / words, MAX_WORDS["IMDB"]) for level, part in parts.items()}
    near_s = cove["end"].at(_SHORT) - cove["gateway"].at(_SHORT)
    far_s = cove["gateway"].at(_LONG) - cove["cloud"].at(_LONG)
    curves = {"CoVe-300": cove, "CoVe-200": smaller, "IMDB": reviews}
    return Devices("reconstructed", curves, {}, BLE_PART * mean_s, LOADED, near_s, far_s)


def measured(found: Mapping[str, Any], like: Devices) -> Devices:
    """This machine's medians, dilated so that CoVe-300's slopes on the three devices are those of `like`.

    `found` is the result of crime_measure; the factor common to a round's lengths is the machine's drift, and
    is removed. Figure 3's break-evens stay at 4 and 11, so its round trips change.
    """
    dilations = dilated(found, like)
    curves: dict[str, dict[str, Curve]] = {}
    factors: dict[str, tuple[tuple[int, tuple[float, ...]], ...]] = {}
    for model, rows in found["times"].items():
        seconds = np.array([times for _, times in rows])
        drift = np.median(seconds / np.median(seconds, axis=1, keepdims=True), axis=0)
        steady = seconds / drift
        medians = [(n, float(np.median(times))) for (n, _), times in zip(rows, steady, strict=True)]
        curves[model] = {
            level: Curve(tuple((n, factor * t) for n, t in medians)) for level, factor in dilations.items()
        }
        factors[model] = tuple(
            (n, tuple((times / middle).tolist())) for (n, middle), times in zip(medians, steady, strict=True)
        )
    cove = curves["CoVe-300"]
    near_s = cove["end"].at(_SHORT) - cove["gateway"].at(_SHORT)
    far_s = cove["gateway"].at(_LONG) - cove["cloud"].at(_LONG)
    return Devices("measured", curves, factors, like.ble_s, found["loaded"], near_s, far_s)


def dilated(found: Mapping[str, Any], like: Devices) -> dict[str, float]:
    """How many times slower each device is than this machine's one thread."""
    rows = found["times"]["CoVe-300"]
    ours = _slope([n for n, _ in rows], [float(np.median(t)) for _, t in rows])
    cove = like.curves["CoVe-300"]
    return {level: (cove[level].at(60) - cove[level].at(10)) / 50.0 / ours for level in LEVELS}


def _end_node(n: np.ndarray) -> tuple[float, float]:
    """(slope, constant) for which 200 ms give SNLI's 19 % and 10 %, by nested bisection."""
    away_s = _RTT_S + float((50 + 2 * n + 32).mean()) / _BANDWIDTH_BPS

    def savings(slope_s: float, fixed_s: float) -> tuple[float, float]:
        here, there = fixed_s + slope_s * n, away_s + CLOUD * slope_s * n
        best = float(np.minimum(here, there).mean())
        return 1 - best / float(here.mean()), 1 - best / float(there.mean())

    def slope_for(fixed_s: float) -> float:
        low, high = 1e-4, 0.1
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if savings(middle, fixed_s)[0] < _VS_END else (low, middle)
        return low

    low, high = 0.0, 0.15
    for _ in range(60):  # at the same gain on the end node, a larger constant reduces the gain on the cloud
        middle = (low + high) / 2
        low, high = (middle, high) if savings(slope_for(middle), middle)[1] > _VS_CLOUD else (low, middle)
    return slope_for(low), low


def _slope(n: Sequence[float], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.array(n, float), np.array(seconds), 1)[0])
