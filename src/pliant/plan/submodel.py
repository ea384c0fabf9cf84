"""Compute planning (STI 5.3): which n x m to run. Knows compute times, nothing of IO or bits."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.ir.cost import CostTable


@dataclass(frozen=True, slots=True)
class Submodel:
    """n layers of m slices each; `compute_s` is what its layers take when nothing else runs."""

    n: int
    m: int
    compute_s: float

    @property
    def n_shards(self) -> int:
        return self.n * self.m


def submodels(n_layers: int, widths: Iterable[int], costs: CostTable) -> tuple[Submodel, ...]:
    """Every submodel of a model: depths 1..n_layers, trained widths only."""
    return tuple(Submodel(n, m, n * costs.layer(m).alone_s) for m in widths for n in range(1, n_layers + 1))


def fitting(candidates: Sequence[Submodel], usable_s: float) -> tuple[Submodel, ...]:
    """Those whose compute alone fits into `usable_s`."""
    return tuple(c for c in candidates if c.compute_s <= usable_s * (1 + 1e-12))


def rank(candidates: Sequence[Submodel], similar: float = 0.1) -> tuple[Submodel, ...]:
    """The order in which submodels are tried: most shards first; of similar numbers, the deeper (STI 5.3).

    Numbers within the fraction `similar` of the largest left are similar; equal depth prefers width.
    """
    left = sorted(((c.n_shards, c.n, c.m, c) for c in candidates), reverse=True)
    order = []
    while left:
        enough = (1 - similar) * left[0][0]
        at = max(range(bisect_right(left, -enough, key=lambda c: -c[0])), key=lambda i: left[i][1:3])
        order.append(left.pop(at)[3])
    return tuple(order)
