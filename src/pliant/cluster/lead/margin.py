"""The saving that a plan must promise to be chosen: bounds learnt from the cluster's own runs. Pure.

A plan over several devices waits for all of them, so prediction errors cost it more than they cost one
device. It is chosen only if a bound on its time, not just its prediction, is below the predicted time of the
best single device.
"""

from collections import Counter
from typing import Literal, final

from pliant.ir.partition import Mode, Partition
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing
from pliant.plan.partition.partitioner import Gains

PlanKind = Mode | Literal["alone"]
"""A split by its mode, or a single device other than the primary, which depends on a link."""

PRIOR: dict[PlanKind, Timing] = {
    "alone": Timing(1.0, 1.05),
    "ws": Timing(1.0, 1.1),
    "1d": Timing(1.0, 1.1),
    "2d": Timing(1.25, 1.4),
}
"""Actual seconds per predicted second, before a cluster has run anything.

On 50 random sets (seeds 0 to 49 of bench/hepti_never_slower.py) splits took 9 % more than predicted, relative
to single devices, on average, with a standard deviation of 13 %. With a bound of 1.1, and predictions spread
evenly from 0.4 to 1 of the single device's, such errors make 4 % of choices more than 5 % slower than it. The
closed form prices grids up to 25 % too low.
"""
_N_FORGOTTEN = 200
"""Runs without a plan of a kind after which its prior applies again: otherwise an abandoned kind would never
be retried. The two runs needed to abandon it again are 1 % of them.
"""

_WORSE = 1.25
"""A factor that may prevent the choice of a split that would pay."""
_RAISED = 1.15
"""A rise of a kind's bound that puts its plans in doubt: 1 % of runs at a standard deviation of 13 %."""


@final
class Margins:
    """The fraction of time that a plan of each kind must save, as `least_gain`.

    The bound of a kind is its `PRIOR` times the factor of its runs (`AdaptiveBound`). It falls as predictions
    prove exact and rises with two that did not, but a plan without a predicted saving is never chosen.
    `least_gain` is replaced, never modified, so any thread may read it.
    """

    def __init__(self) -> None:
        self._bounds = {kind: AdaptiveBound() for kind in PRIOR}
        self._n_since: Counter[PlanKind] = Counter()
        self.least_gain: Gains = self._gains()
        self._lowest = dict(self.least_gain)
        """The lowest gains that plans in use may have been chosen with."""

    def observe(self, partition: Partition, predicted_s: float, seconds: float) -> PlanKind | None:
        """Record that a run by `partition` took `seconds`; `predicted_s` was predicted at its choice.

        Returns its kind if present plans of that kind may have been chosen with a clearly lower bound.
        """
        kind = kind_of(partition)
        for other in PRIOR.keys() - {kind}:
            self._n_since[other] += 1
            if self._n_since[other] == _N_FORGOTTEN:
                self._bounds[other] = AdaptiveBound()
        if kind is not None:
            self._n_since[kind] = 0
            self._bounds[kind].observe(PRIOR[kind].times(predicted_s), seconds)
        gains = self._replace_gains()
        if kind is None or 1 - self._lowest[kind] <= _RAISED * (1 - gains[kind]):
            return None
        self._lowest[kind] = gains[kind]
        return kind

    def forget(self) -> bool:
        """Reset to the priors; return whether some predictions had turned out worse."""
        is_worse = any(bound.factor() > _WORSE for bound in self._bounds.values())
        self._bounds = {kind: AdaptiveBound() for kind in PRIOR}
        self._replace_gains()
        return is_worse

    def _replace_gains(self) -> Gains:
        self.least_gain = gains = self._gains()
        self._lowest = {kind: min(gain, gains[kind]) for kind, gain in self._lowest.items()}
        return gains

    def _gains(self) -> Gains:
        return {
            kind: 1 - 1 / max(prior.median_s, prior.p95_s * self._bounds[kind].factor())
            for kind, prior in PRIOR.items()
        }


def kind_of(partition: Partition) -> PlanKind | None:
    """Return None for the primary alone, the reference of all other plans."""
    if len(partition.participants) > 1:
        return partition.mode
    return None if partition.participants == (partition.primary,) else "alone"
