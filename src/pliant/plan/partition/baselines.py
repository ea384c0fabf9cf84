"""The baselines of partitioning: everything local, equal shares, shares by speed, CoEdge's."""

from dataclasses import dataclass

import numpy as np

from pliant.ir.partition import Partition
from pliant.plan.partition.initial_plans import share_proportionally
from pliant.plan.partition.partition_cost import FlatMode, FlatPlans, seconds, to_partition, to_plans
from pliant.plan.partition.problem import PartitionProblem


@dataclass(frozen=True, slots=True)
class Baseline:
    """A partition by some rule, and its predicted seconds: infinite if weights do not fit in memory."""

    partition: Partition
    seconds: float


def local(p: PartitionProblem) -> Baseline:
    """Run everything on the primary."""
    return _shared(p, "ws", np.eye(p.n)[p.primary])


def equal(p: PartitionProblem, mode: FlatMode) -> Baseline:
    """Give all devices equal shares, as in parallelism among equal devices (Shoeybi et al. 2019)."""
    return _shared(p, mode, np.ones(p.n))


def by_speed(p: PartitionProblem, mode: FlatMode) -> Baseline:
    """Share in proportion to each device's compute speed; the network is ignored."""
    return _shared(p, mode, 1.0 / (p.attend_s[:, -1] + p.rest_s[:, -1]))


def coedge(p: PartitionProblem) -> Baseline:
    """Return CoEdge's shares (Zeng et al. 2020), in the weight-stationary mode as in Hepti 5.3.

    Shares are proportional to each device's speed of computing and exchanging, and set once: they are kept
    when bandwidth changes, and the run stops when memory falls (Figure 7).
    """
    s = p.sizes
    sent_s = 4.0 * s.hidden * s.rows / np.minimum(p.egress, p.ingress)
    return _shared(p, "ws", 1.0 / (p.attend_s[:, -1] + p.rest_s[:, -1] + sent_s))


def predicted_s(p: PartitionProblem, partition: Partition) -> float:
    """Return the seconds of a partition under the costs of `p`, which need not be those it was made for."""
    return float(seconds(p, to_plans(p, partition))[0])


def _shared(p: PartitionProblem, mode: FlatMode, speed: np.ndarray) -> Baseline:
    s, ratio = p.sizes, speed[None].astype(float)
    columns = share_proportionally(ratio, s.n_columns) if mode == "1d" else np.zeros((1, p.n), dtype=np.int64)
    plan = FlatPlans(
        mode, share_proportionally(ratio, s.n_heads), share_proportionally(ratio, s.rows), columns
    )
    return Baseline(to_partition(p, plan), float(seconds(p, plan)[0]))
