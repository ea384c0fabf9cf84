"""Two programs compared by what they took side by side: the median of paired ratios and its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        """Whether the whole interval lies above 1: slower, and not by chance."""
        return self.low > 1.0


def paired(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """a / b, of runs that were measured in turns."""
    ratios = np.asarray(a, float) / np.asarray(b, float)
    picks = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))
