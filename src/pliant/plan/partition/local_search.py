"""Improve partitions by moving shares between devices, with a grid or without. A heuristic: no proof."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pliant.arrays import Bool, Float
from pliant.plan.partition.partition_cost import AnyPlans, Counts, concat_plans, seconds
from pliant.plan.partition.problem import PartitionProblem

MAX_MOVES = 200
"""Maximum number of moves of one kind, per plan, that are priced at once."""
MIN_GAIN = 1e-3
"""Relative saving below which a round is the last."""


def descend(
    begun: Sequence[tuple[AnyPlans, float]],
    near: Sequence[Callable[[AnyPlans], AnyPlans]],
    price: Callable[[AnyPlans], Float[np.ndarray, " plans"]],
    rounds: int,
) -> list[tuple[AnyPlans, float]]:
    """Improve each plan by the best option of each kind in `near`, for at most `rounds`.

    Stops when no option helps. The options of all plans are priced in one call.
    """
    found = list(begun)
    moving = list(range(len(found)))
    for _ in range(rounds):
        before_s = [plan_s for _, plan_s in found]
        for options_near in near:
            options = [options_near(found[i][0]) for i in moving]
            ends = np.cumsum([len(some) for some in options])[:-1]
            priced = np.split(price(concat_plans(options)), ends)
            for i, some, times in zip(moving, options, priced, strict=True):
                if len(times) and times.min() < found[i][1]:
                    found[i] = some.take(int(times.argmin())), float(times.min())
        moving = [i for i in moving if found[i][1] < before_s[i] * (1 - MIN_GAIN)]
        if not moving:
            break
    return found


def moved_plans(
    plans: AnyPlans, sizes: Mapping[str, int | Counts], taking: Bool[np.ndarray, " devices"] | bool = True
) -> AnyPlans:
    """Return the ways to move the given amount of each axis from one device to another one in `taking`.

    Negative amounts move backwards. An amount may differ per device; amounts of 0 are skipped. At most about
    MOST ways per plan.
    """
    able = taking & ~np.eye(plans.heads.shape[1], dtype=bool)
    for axis, size in sizes.items():
        share, size = getattr(plans, axis), np.asarray(size)
        able = able & ((share >= size) & (size != 0))[:, :, None]
        if (size < 0).any():
            able &= share[:, None, :] >= -size[..., None]
    i, src, dst = able.nonzero()
    stride = -(-len(i) // (MAX_MOVES * max(len(plans), 1))) or 1
    i, src, dst = i[::stride], src[::stride], dst[::stride]
    after, at = plans.take(i), np.arange(len(i))
    for axis, size in sizes.items():
        share = getattr(after, axis)
        some = size if isinstance(size, int) else size[i, src]
        share[at, src] -= some
        share[at, dst] += some
    return after


def with_share(plan: AnyPlans, axis: str, changed: Counts) -> AnyPlans:
    """Return one plan for each row of `changed`."""
    near = plan.take(np.zeros(len(changed), dtype=np.int64))
    getattr(near, axis)[:] = changed
    return near


def fastest(p: PartitionProblem, plans: AnyPlans) -> tuple[AnyPlans, float]:
    """Return the fastest plan, the first among equals, and its seconds."""
    times = seconds(p, plans)
    i = int(np.argmin(times))
    return plans.take(i), float(times[i])
