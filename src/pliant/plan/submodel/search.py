"""The planner (STI 5): submodel, preload set and bits under a latency target. Pure; receives only values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.arrays import Float, Int
from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS
from pliant.ir.cost import EMBED, Cost
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.accuracy import AccuracyCurves, AccuracyGrid, accuracy_curves
from pliant.plan.submodel.assemble_plan import PlanDraft, assemble
from pliant.plan.submodel.io_plan import TOLERANCE_S, HeldPlanes, Ledger, fidelity
from pliant.plan.submodel.plan_options import OURS as OURS
from pliant.plan.submodel.plan_options import PAPER as PAPER
from pliant.plan.submodel.plan_options import PlanOptions as PlanOptions
from pliant.plan.submodel.preload_set import held_bytes
from pliant.plan.submodel.reserve import io_reserve
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import (
    BEST_EFFORT,
    CutReason,
    Submodel,
    allowed_submodels,
    choose_most_accurate,
    cut_reason,
    depths_advice,
    fitting_submodels,
    rank_key,
    rank_submodels,
    submodels,
    untrained_reason,
)
from pliant.plan.submodel.submodel_problem import Attempt, SubmodelProblem
from pliant.quantities import format_seconds, format_seconds_up


@dataclass(frozen=True, slots=True)
class _AllocatedSubmodel:
    """A submodel with the bits that its AIBs afford and their preload set.

    `accuracy` is the expected one at those bits, None if nothing was measured.
    """

    attempt: Attempt
    ledger: Ledger
    held: HeldPlanes
    accuracy: float | None


def plan(
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    importance: Float[np.ndarray, "N M"],
    options: PlanOptions = OURS,
    *,
    expected: Cost | None = None,
    held: Int[np.ndarray, "N M"] | None = None,
    accuracy: AccuracyGrid | None = None,
    arena_bytes: int = 0,
    fixed_bytes: int = 0,
) -> Plan:
    """Return the submodel, preload set and bits that use `budget` best.

    The target must hold at `costs` (95th percentile); times are predicted with `expected` (medians). `held`
    are the planes in memory already: they replace the preload set, whatever `budget.preload_bytes` is, and
    all of them count as memory. With `accuracy` (see `expected_grid`), the submodel of the highest expected
    accuracy at its reachable bits is taken instead of the largest, unless `options.choose` is "size". A
    submodel that the model was not trained for, and whose accuracy was not measured, is planned only if
    `options.depths` is "any".

    Raises BudgetError naming the nearest feasible target, unless `options.best_effort`.
    """
    if options.io_reserve is None:
        n_bytes = shape.n_slices * shape.plane_bytes
        options = replace(options, io_reserve=io_reserve(costs, expected, n_bytes))
    problem = SubmodelProblem(shape, costs, budget, importance, options, held)
    known = accuracy_curves(accuracy or {}, options.errors)
    every = submodels(shape.n_layers, shape.widths, costs)
    every = allowed_submodels(every, shape, options.depths, known.places)
    order = _order(problem, every)
    if accuracy and options.choose == "accuracy":
        chosen = _most_accurate(problem, order, known)
    else:
        first = next((a for a in map(problem.attempt, order) if a), None)
        chosen = None if first is None else _allocated(problem, first, known)
    if chosen is None:
        chosen = _allocated(problem, _smallest(problem, every), known)
        order = ()
    reasons = tuple(_reasons(problem, chosen, order, known))
    c = chosen.attempt.submodel
    made = assemble(
        _draft(problem, chosen, reasons, cut_reason(shape, c.n, c.m, known.places)),
        shape,
        costs,
        budget,
        expected=expected,
        errors=options.errors,
        margin=options.margin,
        patience=options.patience,
        io_reserve=options.reserve,
        arena_bytes=arena_bytes,
        fixed_bytes=fixed_bytes,
        preload_bytes=None if held is None else held_bytes(shape, held),
    )
    return replace(made, expected_accuracy=chosen.accuracy)


def _order(problem: SubmodelProblem, every: Sequence[Submodel]) -> tuple[Submodel, ...]:
    """Return the submodels that compute in time, in the order of trial.

    Which numbers of shards count as similar depends on the largest one compared. The paper compares submodels
    that compute in time; pliant compares all, so that no target changes the order of any two.
    """
    options = problem.options
    if options.allocate == "paper":
        return rank_submodels(fitting_submodels(every, problem.usable_s), options.similar)
    return fitting_submodels(rank_submodels(every, options.similar), problem.usable_s)


def _draft(
    problem: SubmodelProblem, chosen: _AllocatedSubmodel, reasons: tuple[str, ...], cut: CutReason
) -> PlanDraft:
    a, ledger = chosen.attempt, chosen.ledger
    bonus_s = np.cumsum([ledger.held_seconds(k) for k in range(ledger.n)])
    budgets_s = np.asarray(ledger.spare_s) + np.cumsum(ledger.load_s)
    return PlanDraft(
        name="paper" if problem.options.allocate == "paper" else "ours",
        layers=a.layers,
        width=a.submodel.m,
        bits=tuple(tuple(row) for row in ledger.bits),
        held=chosen.held,
        loads=tuple(ledger.load(k, layer) for k, layer in enumerate(a.layers)),
        weights=a.weights,
        slack_s=ledger.granted_s,
        aib_start_s=tuple((budgets_s + bonus_s).tolist()),
        aib_s=tuple(0.0 if abs(x) < TOLERANCE_S else x for x in ledger.spare_s),
        reasons=reasons,
        is_anytime=problem.options.is_anytime,
        cut=cut,
    )


def _allocated(problem: SubmodelProblem, a: Attempt, known: AccuracyCurves) -> _AllocatedSubmodel:
    ledger, held = problem.allocate(a)
    kept = fidelity(ledger.bits, a.weights, problem.options.errors)
    return _AllocatedSubmodel(a, ledger, held, known.at(a.submodel.n, a.submodel.m, kept))


def _most_accurate(
    problem: SubmodelProblem, order: Sequence[Submodel], known: AccuracyCurves
) -> _AllocatedSubmodel | None:
    """Return the submodel of the highest expected accuracy at the bits that it can reach.

    The whole model at full fidelity is taken without comparison if no other is expected to be more accurate.
    A submodel that could not win at full fidelity, or at more than its IO time affords, is skipped. If none
    in reach was measured, the first of `order` is taken.
    """
    if (whole := _whole(problem, order, known)) is not None:
        return whole

    def choose(c: Submodel, to_beat: float) -> _AllocatedSubmodel | None:
        a = problem.attempt(c)
        if a is None or rank_key(known.at(c.n, c.m, problem.fidelity_bound(a))) <= to_beat:
            return None
        return _allocated(problem, a, known)

    return choose_most_accurate(order, known, choose)


def _whole(
    problem: SubmodelProblem, order: Sequence[Submodel], known: AccuracyCurves
) -> _AllocatedSubmodel | None:
    """Return the whole model if all its shards can run at full fidelity and no other is more accurate."""
    everything = (problem.shape.n_layers, problem.shape.n_slices)
    best = max((rank_key(known.at(c.n, c.m, 1.0)) for c in order), default=-1.0)
    if rank_key(known.at(*everything, 1.0)) < best:
        return None
    found = next((c for c in order if (c.n, c.m) == everything), None)
    a = None if found is None else problem.attempt(found)
    if a is None or problem.fidelity_bound(a) < 1.0 - 1e-9:
        return None
    choice = _allocated(problem, a, known)
    is_full = all(bits == FULL_BITS for row in choice.ledger.bits for bits in row)
    return choice if is_full else None


def _reasons(
    problem: SubmodelProblem, chosen: _AllocatedSubmodel, order: Sequence[Submodel], known: AccuracyCurves
) -> Iterator[str]:
    a, ledger, held = chosen.attempt, chosen.ledger, chosen.held
    c, asked_s = a.submodel, problem.budget.requested_s
    computes = f"{c.n}x{c.m} computes in {c.compute_s * 1e3:.1f} ms"
    if asked_s is None:
        yield f"no target was given: {computes}"
    else:
        usable = f"{problem.usable_s * 1e3:.1f} ms of {asked_s * 1e3:.1f} ms are left for layers"
        yield f"{usable}: {computes}"
    if cut_reason(problem.shape, c.n, c.m, known.places) == "untrained":
        yield untrained_reason(problem.shape, c)
    if chosen.accuracy is not None:
        yield from _why_accurate(problem, chosen, order, known)
    if c in order and (chosen.accuracy is None or problem.options.choose == "size"):
        yield from _why_not(problem, order[: order.index(c)])
    if not problem.fits(a):
        yield "the target cannot be met: this is the smallest submodel, at the lowest bits"
    if held.any():
        yield f"{int((held > 0).sum())} of {held.size} shards start from memory (rule: {a.rule})"
    if not any(ledger.load_s):
        yield "the preload buffer holds everything that runs: nothing is read at run time"
    elif ledger.load_s[0] > problem.costs.seconds(EMBED):
        wait_s = ledger.load_s[0] - problem.costs.seconds(EMBED)
        yield f"the first layer waits {wait_s * 1e3:.2f} ms for its own load"
    if all(bits == FULL_BITS for row in ledger.bits for bits in row):
        yield "every shard runs at full fidelity"
    elif any(ledger.load_s):
        tight = int(np.argmin(ledger.spare_s))
        left = f"{ledger.spare_s[tight] * 1e3:.2f} ms"
        yield f"layer {a.layers[tight]} leaves least IO time unspent: {left}"


def _why_accurate(
    problem: SubmodelProblem, chosen: _AllocatedSubmodel, order: Sequence[Submodel], known: AccuracyCurves
) -> Iterator[str]:
    """Yield the expected accuracy of the chosen submodel, and the maximum of the largest one in time."""
    c = chosen.attempt.submodel
    expected = f"{c.n}x{c.m} at these bits is expected to be {100 * rank_key(chosen.accuracy):.1f} % accurate"
    if problem.options.choose == "size" or not order:
        yield expected
        return
    most = order[0]
    if most == c and all(bits == FULL_BITS for row in chosen.ledger.bits for bits in row):
        yield expected
        return
    yield f"{expected}, more than any other in reach"
    at_best = known.at(most.n, most.m, 1.0)
    if most != c and at_best is not None:
        yield f"most slices would be {most.n}x{most.m}: {100 * at_best:.1f} % at full fidelity"


def _why_not(problem: SubmodelProblem, skipped: Sequence[Submodel]) -> Iterator[str]:
    """Yield why preferred submodels that compute in time do not run."""
    slowed = [s for s in skipped if not problem.may_read(s)]
    starved = [s for s in skipped if problem.may_read(s)]
    within = "" if problem.budget.working_bytes is None else " within the working memory"
    for those, why in (
        (slowed, "take too long to compute while IO runs"),
        (starved, f"cannot read even {LOWEST_BITS}-bit shards in time{within}"),
    ):
        if those:
            names = ", ".join(f"{s.n}x{s.m}" for s in those[:3]) + (" ..." if those[3:] else "")
            yield f"larger {names} {why}"


def _smallest(problem: SubmodelProblem, candidates: Sequence[Submodel]) -> Attempt:
    """Return the submodel that needs the least time; raises BudgetError unless best effort is requested."""
    least_n = {m: min(c.n for c in candidates if c.m == m) for m in {c.m for c in candidates}}
    shallow = [c for c in candidates if c.n == least_n[c.m]]
    every = [a for c in shallow for a in problem.attempts(c)]
    attempts = list(filter(problem.holds, every))
    if not attempts and problem.options.best_effort:
        attempts = list(filter(problem.holds_two, every))
    if not attempts:
        least = min(problem.working(a, a.ledger) for a in every)
        raise BudgetError(
            f"a working buffer of {problem.budget.working_bytes} bytes does not hold the {LOWEST_BITS}-bit "
            f"planes of the layers in flight: give at least {least} bytes, or a larger preload buffer."
        )
    best = min(attempts, key=lambda a: a.needs_s)
    if problem.options.best_effort:
        return best
    raise BudgetError(_infeasible(problem, best))


def _infeasible(problem: SubmodelProblem, best: Attempt) -> str:
    """Return the message: the target, the needs of the least demanding submodel, and advice."""
    c = best.submodel
    nearest_s = (best.needs_s + problem.overhead_s) / (1 - problem.options.margin)
    target = f"no submodel answers within {format_seconds(problem.budget.target_s)}"
    layers = "1 layer" if c.n == 1 else f"{c.n} layers"
    size = f"{layers} x {c.m} slices at {LOWEST_BITS} bits"
    needs = f"{size}) needs {format_seconds_up(nearest_s)} on this device."
    advice = f"Raise the target to that, raise the preload buffer, or {BEST_EFFORT}."
    which = "smallest" if c.n < problem.shape.n_layers else "whole model"
    return f"{target}: the {which} ({needs} {advice}{depths_advice(problem.shape, c)}"
