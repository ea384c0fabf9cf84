"""The planner (STI 5): submodel, preload set and bits under a latency target. Pure; receives values only."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from pliant.errors import BudgetError
from pliant.ir.cost import Budget, CostTable
from pliant.plan.assemble import Draft, assemble
from pliant.plan.attempt import Attempt, Problem
from pliant.plan.load import TOLERANCE_S, Held, Ledger
from pliant.plan.options import OURS as OURS
from pliant.plan.options import PAPER as PAPER
from pliant.plan.options import PlanOptions as PlanOptions
from pliant.plan.result import Plan
from pliant.plan.shape import FULL_BITS, LOWEST_BITS, PLANES, StoreShape
from pliant.plan.submodel import Submodel, fitting, rank, submodels

# Measured accuracy of a submodel at uniform bits: (n, m, bits) -> fraction.
AccuracyGrid = Mapping[tuple[int, int, int], float]


def plan(
    shape: StoreShape,
    costs: CostTable,
    budget: Budget,
    importance: Float[np.ndarray, "N M"],
    options: PlanOptions = OURS,
    *,
    expected: CostTable | None = None,
    held: Int[np.ndarray, "N M"] | None = None,
    accuracy: AccuracyGrid | None = None,
    arena_bytes: int = 0,
) -> Plan:
    """The submodel, preload set and bits that use `budget` best.

    `costs` are what the target must hold at (95th percentile), `expected` what times are predicted
    with (medians). `held` says which planes are in memory already (back-to-back runs): they are then
    the preload set, whatever `budget.preload_bytes` says. With `accuracy`, the submodel of the
    highest measured accuracy at its reachable bits is taken instead of the largest.

    Raises BudgetError naming the nearest feasible target, unless `options.best_effort`.
    """
    problem = Problem(shape, costs, budget, importance, options, held)
    every = submodels(shape.n_layers, shape.widths, costs)
    order = rank(fitting(every, problem.usable_s), options.similar)
    if accuracy is None:
        chosen = next((a for a in map(problem.attempt, order) if a), None)
    else:
        chosen = _most_accurate(problem, order, accuracy)
    if chosen is None:
        chosen = _smallest(problem, every)
        order = ()
    ledger, kept = problem.allocate(chosen)
    reasons = tuple(_reasons(problem, chosen, ledger, kept, order, accuracy))
    return assemble(
        _draft(problem, chosen, ledger, kept, reasons),
        shape,
        costs,
        budget,
        expected=expected,
        errors=options.errors,
        margin=options.margin,
        patience=options.patience,
        io_reserve=options.io_reserve if options.is_anytime else 1.0,
        arena_bytes=arena_bytes,
    )


def _draft(problem: Problem, a: Attempt, ledger: Ledger, held: Held, reasons: tuple[str, ...]) -> Draft:
    bonus_s = np.cumsum([ledger.held_seconds(k) for k in range(ledger.n)])
    budgets_s = np.asarray(ledger.spare_s) + np.cumsum(ledger.load_s)
    return Draft(
        name="ours",
        layers=a.layers,
        width=a.submodel.m,
        bits=tuple(tuple(row) for row in ledger.bits),
        held=held,
        loads=tuple(ledger.load(k, layer) for k, layer in enumerate(a.layers)),
        weights=a.weights,
        slack_s=ledger.granted_s,
        aib_start_s=tuple((budgets_s + bonus_s).tolist()),
        aib_s=tuple(0.0 if abs(x) < TOLERANCE_S else x for x in ledger.spare_s),
        reasons=reasons,
        is_anytime=problem.options.is_anytime,
    )


def _most_accurate(problem: Problem, order: Sequence[Submodel], accuracy: AccuracyGrid) -> Attempt | None:
    """The submodel of the highest expected accuracy; those that could not win are not looked at."""

    def at_best(c: Submodel) -> float:
        return max((a for (n, m, _), a in accuracy.items() if (n, m) == (c.n, c.m)), default=-1.0)

    best: Attempt | None = None
    best_accuracy = -2.0
    for c in sorted(order, key=at_best, reverse=True):
        if at_best(c) <= best_accuracy:
            break
        a = problem.attempt(c, is_valued=True)
        if a is not None and (expected := _expected_accuracy(problem, a, accuracy)) > best_accuracy:
            best, best_accuracy = a, expected
    return best


def _expected_accuracy(problem: Problem, a: Attempt, accuracy: AccuracyGrid) -> float:
    """Between the bits measured for this submodel, linear in fidelity; -1 where nothing was measured."""
    errors = problem.options.errors
    known = sorted(
        (1 - (errors[bits] if bits <= PLANES else 0.0), value)
        for (n, m, bits), value in accuracy.items()
        if (n, m) == (a.submodel.n, a.submodel.m)
    )
    if not known:
        return -1.0
    return float(np.interp(a.uniform_fidelity, [x for x, _ in known], [y for _, y in known]))


def _reasons(
    problem: Problem, a: Attempt, ledger: Ledger, held: Held, order: Sequence[Submodel],
    accuracy: AccuracyGrid | None,
) -> Iterator[str]:  # fmt: skip
    c, T = a.submodel, problem.budget.latency_s
    usable = f"{problem.usable_s * 1e3:.1f} ms of {T * 1e3:.1f} ms are left for layers"
    yield f"{usable}: {c.n}x{c.m} computes in {c.compute_s * 1e3:.1f} ms"
    if accuracy is not None and order:
        at = _expected_accuracy(problem, a, accuracy)
        yield f"{c.n}x{c.m} is expected to be {100 * at:.1f} % accurate, more than any other in reach"
    elif c in order:
        yield from _why_not(problem, order[: order.index(c)])
    if not problem.fits(a):
        yield "the target cannot be met: this is the smallest submodel, at the lowest bits"
    if held.any():
        yield f"{int((held > 0).sum())} of {held.size} shards start from memory (rule: {a.rule})"
    if not any(ledger.load_s):
        yield "the preload buffer holds everything that runs: nothing is read at run time"
    elif ledger.load_s[0] > problem.costs.embed_s:
        wait_s = ledger.load_s[0] - problem.costs.embed_s
        yield f"the first layer waits {wait_s * 1e3:.2f} ms for its own load"
    if all(bits == FULL_BITS for row in ledger.bits for bits in row):
        yield "every shard runs at full fidelity"
    elif any(ledger.load_s):
        tight = int(np.argmin(ledger.spare_s))
        left = f"{ledger.spare_s[tight] * 1e3:.2f} ms"
        yield f"layer {a.layers[tight]} leaves least IO time unspent: {left}"


def _why_not(problem: Problem, skipped: Sequence[Submodel]) -> Iterator[str]:
    """Why submodels that compute in time, and would be preferred, do not run."""
    slowed = [s for s in skipped if not problem.may_read(s)]
    starved = [s for s in skipped if problem.may_read(s)]
    for those, why in (
        (slowed, "take too long to compute while IO runs"),
        (starved, f"cannot read even {LOWEST_BITS}-bit shards in time"),
    ):
        if those:
            names = ", ".join(f"{s.n}x{s.m}" for s in those[:3]) + (" ..." if those[3:] else "")
            yield f"larger {names} {why}"


def _smallest(problem: Problem, candidates: Sequence[Submodel]) -> Attempt:
    """The submodel that needs the least time; raises BudgetError unless best effort is asked for."""
    shallow = [c for c in candidates if c.n == 1]
    attempts = [a for c in shallow for a in problem.attempts(c)]
    best = min(attempts, key=lambda a: a.needs_s)
    if problem.options.best_effort:
        return best
    c, options = best.submodel, problem.options
    nearest_s = (best.needs_s + problem.overhead_s) / (1 - options.margin)
    raise BudgetError(
        f"no submodel answers within {problem.budget.latency_s * 1e3:.1f} ms: the smallest ({c.n} layer x "
        f"{c.m} slices at {LOWEST_BITS} bits) needs {nearest_s * 1e3:.1f} ms on this device. Raise the "
        "target to that, raise the preload buffer, or take --best-effort."
    )
