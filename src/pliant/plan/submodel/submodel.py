"""Compute planning (STI 5.3): the submodels n x m that may run, in the order of trial."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from pliant.ir.cost import Cost
from pliant.plan.submodel.accuracy import AccuracyCurves
from pliant.plan.submodel.plan_options import Depths
from pliant.plan.submodel.prices import layer_seconds
from pliant.plan.submodel.shape import StoreShape

# Why a submodel may run: nothing is left out, it was trained for, its accuracy was measured, or neither.
CutReason = Literal["none", "trained", "measured", "untrained"]
SubmodelSize = tuple[int, int]  # n x m


@runtime_checkable
class RatedSubmodel(Protocol):
    """A submodel with its bits and expected accuracy, None if nothing was measured."""

    @property
    def accuracy(self) -> float | None: ...


RatedT = TypeVar("RatedT", bound=RatedSubmodel)


@dataclass(frozen=True, slots=True)
class Submodel:
    """n layers of m slices each; `compute_s` is the time of its layers without other load."""

    n: int
    m: int
    compute_s: float

    @property
    def n_shards(self) -> int:
        return self.n * self.m


def submodels(n_layers: int, widths: Iterable[int], costs: Cost) -> tuple[Submodel, ...]:
    """Return every submodel of a model: depths 1..n_layers, trained widths only."""
    layer_s = {m: layer_seconds(costs, m, with_io=False) for m in widths}
    return tuple(Submodel(n, m, n * s) for m, s in layer_s.items() for n in range(1, n_layers + 1))


def allowed_submodels(
    candidates: Sequence[Submodel], shape: StoreShape, depths: Depths, measured: Collection[SubmodelSize]
) -> tuple[Submodel, ...]:
    """Return the submodels that may run: by default those that were trained for or measured."""
    if depths == "any":
        return tuple(candidates)
    return tuple(c for c in candidates if cut_reason(shape, c.n, c.m, measured) != "untrained")


def cut_reason(shape: StoreShape, n: int, m: int, measured: Collection[SubmodelSize]) -> CutReason:
    """Return why n x m may leave out parts of the model, if it does."""
    if (n, m) == (shape.n_layers, shape.n_slices):
        return "none"
    if n in shape.depths and m in shape.widths:
        return "trained"
    return "measured" if (n, m) in measured else "untrained"


def untrained_reason(shape: StoreShape, c: Submodel) -> str:
    """Return the reason shown for a submodel that runs because any depth was requested."""
    return (
        f"{c.n} of {shape.n_layers} layers run (depths: any), though the model was not trained for that and "
        "its accuracy was never measured"
    )


BEST_EFFORT = "accept late answers with best_effort=True (`pliant run --best-effort`)"
"""Advice for a target that no submodel meets."""


def depths_advice(shape: StoreShape, least: Submodel) -> str:
    """Return the advice for an infeasible target if the smallest submodel has all the model's layers."""
    if least.n < shape.n_layers or shape.n_layers == 1:
        return ""
    return (
        f" The model was not trained to run with fewer than its {shape.n_layers} layers: make it elastic "
        "with `pliant stretch`, measure its depths with `pliant pack --accuracy`, or leave layers out at "
        "whatever that costs in accuracy with --depths any."
    )


def fitting_submodels(candidates: Sequence[Submodel], usable_s: float) -> tuple[Submodel, ...]:
    """Return the submodels whose compute alone fits into `usable_s`."""
    return tuple(c for c in candidates if c.compute_s <= usable_s * (1 + 1e-12))


def rank_submodels(candidates: Sequence[Submodel], similar: float = 0.1) -> tuple[Submodel, ...]:
    """Return the order of trial: most shards first; among similar numbers, the deeper (STI 5.3).

    Numbers within the fraction `similar` of the largest remaining are similar; equal depth prefers width.
    """
    left = sorted(((c.n_shards, c.n, c.m, c) for c in candidates), reverse=True)
    order = []
    while left:
        enough = (1 - similar) * left[0][0]
        at = max(range(bisect_right(left, -enough, key=lambda c: -c[0])), key=lambda i: left[i][1:3])
        order.append(left.pop(at)[3])
    return tuple(order)


def choose_most_accurate(
    order: Sequence[Submodel], known: AccuracyCurves, choose: Callable[[Submodel, float], RatedT | None]
) -> RatedT | None:
    """Return the choice with the highest expected accuracy that `choose` makes for submodels in `order`.

    `choose(submodel, to_beat)` returns None if the submodel cannot run or cannot be more accurate than
    `to_beat`. A submodel that would not win at full fidelity is skipped. Unmeasured submodels rank below
    measured ones, and the first of equals wins.
    """
    best: RatedT | None = None
    least = -2.0
    for c in sorted(order, key=lambda c: rank_key(known.at(c.n, c.m, 1.0)), reverse=True):
        if rank_key(known.at(c.n, c.m, 1.0)) <= least:
            break
        choice = choose(c, least)
        if choice is not None and rank_key(choice.accuracy) > least:
            best, least = choice, rank_key(choice.accuracy)
    return best


def rank_key(accuracy: float | None) -> float:
    """Return a number that ranks unmeasured submodels below measured ones."""
    return -1.0 if accuracy is None else accuracy
