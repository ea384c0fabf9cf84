"""Time and memory of many partitions at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import numpy as np

from pliant.ir.partition import Partition, Share
from pliant.plan.partition.cost_1d import tiled_seconds
from pliant.plan.partition.cost_2d import GridPlans as GridPlans
from pliant.plan.partition.cost_2d import PlanIndex, grid_partition, grid_plans, grid_seconds, grid_weights
from pliant.plan.partition.cost_ws import Counts as Counts
from pliant.plan.partition.cost_ws import PerDevice, Times, ws_seconds
from pliant.plan.partition.problem import PartitionProblem

FlatMode = Literal["ws", "1d"]


@dataclass(frozen=True, slots=True)
class FlatPlans:
    """Shares of several partitions of one mode without a grid; no columns in the weight-stationary mode."""

    mode: FlatMode
    heads: Counts
    rows: Counts
    columns: Counts

    def __len__(self) -> int:
        return len(self.heads)

    def take(self, i: PlanIndex) -> "FlatPlans":
        """Return plan number `i`, or the plans of these numbers."""
        at = np.atleast_1d(i)
        return FlatPlans(self.mode, self.heads[at], self.rows[at], self.columns[at])


AnyPlans = TypeVar("AnyPlans", FlatPlans, GridPlans)


def concat_plans(plans: Sequence[AnyPlans]) -> AnyPlans:
    """Concatenate plans of one mode, in order."""
    joined = {name: np.concatenate([getattr(one, name) for one in plans]) for name in _shares(plans[0])}
    return replace(plans[0], **joined)  # type: ignore[arg-type]


def make_contiguous(plans: AnyPlans) -> AnyPlans:
    """Return the plans with each device's shares contiguous in memory.

    They are priced in this order: otherwise sums over the few devices dominate the time.
    """
    shares = {name: np.asfortranarray(getattr(plans, name)) for name in _shares(plans)}
    return replace(plans, **shares)  # type: ignore[arg-type]


def _shares(plans: FlatPlans | GridPlans) -> list[str]:
    return [one.name for one in fields(plans) if one.name != "mode"]


def seconds(p: PartitionProblem, plans: FlatPlans | GridPlans) -> Times:
    """Return the predicted seconds of each; infinite if weights do not fit in a device's memory (eq. 4)."""
    if isinstance(plans, GridPlans):
        plans = make_contiguous(plans)
        times = grid_seconds(p, plans)
    else:
        plans = make_contiguous(plans)
        is_ws, shares = plans.mode == "ws", (plans.heads, plans.rows)
        times = ws_seconds(p, *shares) if is_ws else tiled_seconds(p, *shares, plans.columns)
    return np.where((device_weight_bytes(p, plans) <= p.memory).all(1), times, np.inf)


def device_weight_bytes(p: PartitionProblem, plans: FlatPlans | GridPlans) -> PerDevice:
    """Return the bytes of weights on each device."""
    if isinstance(plans, GridPlans):
        return grid_weights(p, plans)
    s = p.sizes
    head, row, column = s.ws_head, s.ws_row, 0
    if plans.mode == "1d":
        head, row, column = s.tiled_head, s.tiled_row, s.tiled_column
    held: PerDevice = np.where(plans.heads > 0, head.fixed + head.each * plans.heads, 0.0)
    held += row * (plans.rows > 0) + column * plans.columns
    return held


def to_partition(p: PartitionProblem, plans: FlatPlans | GridPlans) -> Partition:
    """Convert the first of `plans`; devices without a share are included with empty shares."""
    if isinstance(plans, GridPlans):
        return grid_partition(p, plans)
    shares = zip(p.names, plans.heads[0], plans.rows[0], plans.columns[0], strict=True)
    return Partition(
        plans.mode,
        p.names[p.primary],
        tuple(Share(name, int(h), int(r), int(c)) for name, h, r, c in shares),
        p.sizes.rows,
        bits=p.sizes.bits,
    )


def to_plans(p: PartitionProblem, partition: Partition) -> FlatPlans | GridPlans:
    """Convert a partition of these devices to plans of length one."""
    if partition.mode == "2d":
        return grid_plans(p, partition)
    shares = [partition.share(name) for name in p.names]
    counts = ([s.heads for s in shares], [s.rows for s in shares], [s.columns for s in shares])
    return FlatPlans(partition.mode, *(np.array([count]) for count in counts))
