"""Split one bound of memory into preload buffer and working buffer, so that more memory is never worse.

What is tried are pairs from two fixed ladders: sizes of the preload buffer, and sizes of what is read for one
layer. A larger bound only adds pairs, so the best plan among them is never worse. With what a layer may read
fixed, a plan is never worse for a larger preload buffer (see `PlanOptions`): so each size of a layer's reads
is tried with the largest buffer first, and left as soon as no smaller buffer can win.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heappop, heappush

from pliant.ir.bitwidths import LOWEST_BITS, PLANES
from pliant.plan.result import Plan
from pliant.plan.submodel.assemble_plan import LEAST_WINDOW
from pliant.plan.submodel.shape import StoreShape

Planned = Callable[[int, int], Plan | None]
"""(preload bytes, bytes read for a layer) -> the best plan; None where none keeps the target."""
Value = Callable[[Plan], tuple[float, ...]]
"""What a plan is worth: the larger of two tuples is the better plan."""

_PRELOAD_STEP, _LAYER_STEP = 2 ** (1 / 16), 2 ** (1 / 2)
"""From one rung of a ladder to the next: at most 4 % of the preload buffer lie idle."""


@dataclass(frozen=True, slots=True)
class Share:
    """A plan with what it is granted: the preload buffer, and the bytes read for a layer."""

    preload_bytes: int
    layer_bytes: int
    plan: Plan

    @property
    def needs_bytes(self) -> int:
        """The least bound under which this is tried, and fits."""
        granted = self.preload_bytes + LEAST_WINDOW * self.layer_bytes
        return max(granted, self.plan.memory.weight_bytes)


def split(
    n_bytes: int, preloads: Sequence[int], layers: Sequence[int], planned: Planned, value: Value
) -> Share | None:
    """The best plan whose weights take at most `n_bytes`; None where none of these ladders fits.

    Both ladders rise; of plans that are worth the same, one that fits comes first.
    """
    heap: list[tuple[tuple[float, ...], bool, int, int, Share]] = []

    def push(rung: int, layer_bytes: int) -> None:
        """Look at the next smaller preload buffer, where there is one."""
        if rung < 0:
            return
        plan = planned(preloads[rung], layer_bytes)
        if plan is not None:  # nor does a smaller buffer keep the target
            share = Share(preloads[rung], layer_bytes, plan)
            worth = tuple(-x for x in value(plan))
            heappush(heap, (worth, share.needs_bytes > n_bytes, layer_bytes, rung, share))

    for layer_bytes in layers:
        push(bisect_right(preloads, n_bytes - LEAST_WINDOW * layer_bytes) - 1, layer_bytes)
    while heap:
        _, is_over, layer_bytes, rung, share = heappop(heap)
        if not is_over:
            return share
        push(rung - 1, layer_bytes)
    return None


def least(preloads: Sequence[int], layers: Sequence[int], planned: Planned) -> Share | None:
    """The plan that `split` finds under the smallest bound under which it finds any."""
    best: Share | None = None
    for layer_bytes in layers:
        if best is not None and LEAST_WINDOW * layer_bytes >= best.needs_bytes:
            break
        first = bisect_left(preloads, True, key=partial(_is_planned, planned, layer_bytes))
        for preload_bytes in preloads[first:]:
            if best is not None and preload_bytes + LEAST_WINDOW * layer_bytes >= best.needs_bytes:
                break
            plan = planned(preload_bytes, layer_bytes)
            if plan is None:
                continue
            share = Share(preload_bytes, layer_bytes, plan)
            if best is None or share.needs_bytes < best.needs_bytes:
                best = share
    return best


def _is_planned(planned: Planned, layer_bytes: int, preload_bytes: int) -> bool:
    """Whether a plan keeps the target: if with this preload buffer, then with every larger one."""
    return planned(preload_bytes, layer_bytes) is not None


@lru_cache(maxsize=64)
def preload_sizes(shape: StoreShape) -> tuple[int, ...]:
    """Nothing, then whole planes by small steps up to all shards at full fidelity."""
    whole = shape.n_layers * shape.n_slices
    most = whole * shape.full_bytes
    sizes = {0, most, whole * PLANES * shape.plane_bytes}
    n_planes = 1.0
    while n_planes * shape.plane_bytes < most:
        sizes.add(int(n_planes) * shape.plane_bytes)
        n_planes *= _PRELOAD_STEP
    return tuple(sorted(sizes))


@lru_cache(maxsize=64)
def layer_sizes(shape: StoreShape) -> tuple[int, ...]:
    """Nothing, then from the lowest bits of the narrowest layer to full fidelity of a whole one."""
    base = LOWEST_BITS * shape.plane_bytes
    most = shape.n_slices * (shape.full_bytes + base)
    sizes = {0, most}
    n_bytes = float(base * shape.widths[0])
    while n_bytes < most:
        sizes.add(int(n_bytes))
        n_bytes *= _LAYER_STEP
    return tuple(sorted(sizes))
