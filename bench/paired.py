"""Compare two programs by paired runs: the median of ratios and its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median of ratios and its central 95 % bootstrap interval (percentiles over resampled pairs)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def is_above(self) -> bool:
        """Whether the whole interval is above 1: significantly slower."""
        return self.low > 1.0


def paired(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio a / b of interleaved runs."""
    ratios = np.asarray(a, float) / np.asarray(b, float)
    picks = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def exact(ratios: Sequence[float]) -> Ratio:
    """The median of few ratios, with the two order statistics that contain the true median with 95 %
    probability; below six ratios, the minimum and maximum, with a lower probability. A bootstrap of so few is
    too narrow.
    """
    ordered, beyond = sorted(ratios), spared(len(ratios))
    return Ratio(float(np.median(ordered)), ordered[beyond], ordered[-1 - beyond])


def spared(n: int) -> int:
    """The number of `n` ratios outside each end of that interval: the most that are on one side of the true
    median with a probability of at most 2.5 %, if each is on either side with equal probability.
    """
    rare = [i for i in range(n) if sum(comb(n, j) for j in range(i + 1)) <= 0.025 * 2**n]
    return max(rare, default=0)
