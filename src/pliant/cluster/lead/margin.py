"""The saving that a plan must promise to be chosen: bounds learnt from the cluster's own runs. Pure.

A plan over several devices waits for all of them, so an error of the prediction costs it more than it costs
one device. It is chosen where a bound on its time, and not only its prediction, is below what the best single
device is predicted to take.
"""

from collections import Counter
from typing import Literal, final

from pliant.ir.partition import Mode, Partition
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing
from pliant.plan.partition.partitioner import Gains

Kind = Mode | Literal["alone"]
"""A split by its mode, or another device alone, which depends on a link."""

PRIOR: dict[Kind, Timing] = {
    "alone": Timing(1.0, 1.05),
    "ws": Timing(1.0, 1.1),
    "1d": Timing(1.0, 1.1),
    "2d": Timing(1.25, 1.4),
}
"""What a predicted second takes, before a cluster ran anything.

On 50 random sets (seeds 0 to 49 of bench/hepti_never_slower.py) splits took 9 % more than predicted, beside
single devices, at the mean, with a standard deviation of 13 %. With a bound of 1.1, and predictions spread
evenly from 0.4 to 1 of the single device's, such errors make 4 % of choices more than 5 % slower than it. The
closed form prices grids up to 25 % too low.
"""
_N_FORGOTTEN = 200
"""Runs without a plan of a kind after which its prior counts again: else one that was given up is never tried
anew. The two runs that it takes to give it up again are 1 % of them."""

_WORSE = 1.25
"""A factor that may keep a split from being chosen that would pay."""


@final
class Margins:
    """The part of its time that a plan of each kind has to save, as `least_gain`.

    The bound of a kind is its `PRIOR` times the factor of what its runs took (`AdaptiveBound`): it falls as
    predictions prove exact and rises with two that were not, but no plan is chosen that is not predicted to
    save time. `least_gain` is replaced, never changed, so that any thread may read it.
    """

    def __init__(self) -> None:
        self._bounds = {kind: AdaptiveBound() for kind in PRIOR}
        self._n_since: Counter[Kind] = Counter()
        self.least_gain: Gains = self._gains()

    def observe(self, partition: Partition, predicted_s: float, seconds: float) -> None:
        """A run by `partition` took `seconds`, where `predicted_s` were predicted when it was chosen."""
        kind = _kind(partition)
        for other in PRIOR.keys() - {kind}:
            self._n_since[other] += 1
            if self._n_since[other] == _N_FORGOTTEN:
                self._bounds[other] = AdaptiveBound()
        if kind is not None:
            self._n_since[kind] = 0
            self._bounds[kind].observe(PRIOR[kind].times(predicted_s), seconds)
        self.least_gain = self._gains()

    def forget(self) -> bool:
        """Count on predictions as before any run; whether some had turned out worse."""
        is_worse = any(bound.factor() > _WORSE for bound in self._bounds.values())
        self._bounds = {kind: AdaptiveBound() for kind in PRIOR}
        self.least_gain = self._gains()
        return is_worse

    def _gains(self) -> Gains:
        return {
            kind: 1 - 1 / max(prior.median_s, prior.p95_s * self._bounds[kind].factor())
            for kind, prior in PRIOR.items()
        }


def _kind(partition: Partition) -> Kind | None:
    """None for the primary alone, which every other plan is compared with."""
    if len(partition.participants) > 1:
        return partition.mode
    return None if partition.participants == (partition.primary,) else "alone"
