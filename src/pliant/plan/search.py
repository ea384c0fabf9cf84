"""The planner (STI 5): submodel, preload set and bits under a latency target. Pure; receives values only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from pliant.errors import BudgetError
from pliant.ir.cost import Budget, CostTable
from pliant.models.spec import picked_layers
from pliant.plan.assemble import Draft, assemble
from pliant.plan.load import (
    EQUAL_POPULATION_ERRORS,
    LLOYD_ERRORS,
    TOLERANCE_S,
    Held,
    Ledger,
    fidelity,
    fill_by_gain,
    fill_by_importance,
    fill_floor,
    fill_uniform,
    weights_of,
)
from pliant.plan.preload import PreloadRule, preload
from pliant.plan.result import Grid, Plan
from pliant.plan.shape import BITS, FULL_BITS, LOWEST_BITS, StoreShape
from pliant.plan.submodel import Submodel, fitting, rank, submodels


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan. The defaults are ours; `PAPER` is STI as published.

    `similar`: numbers of shards within this fraction count as similar (STI 5.3).
    `slack`: "all" lets loads use the time that compute leaves of the target, "none" (the paper) only
    the compulsory stall of the first layer. `uses_lead`: loads may run while the input is embedded.
    `preload`: which shards to keep; "best" tries all rules. `allocate`: "paper" raises single shards
    to the highest bits in order of importance, "gain" goes by weighted error, "exact" solves for the
    least weighted error (seconds, not milliseconds: a yardstick).
    `is_anytime`: late refinements are done without. `best_effort`: an infeasible target gives the
    smallest submodel. `margin`: fraction of the target kept free. `patience`: see `assemble`.
    `io_reserve`: base planes must be in time even when IO is this many times slower than profiled.
    `errors`: weight error at 0..6 planes, relative to the weights' variance.
    """

    similar: float = 0.1
    slack: Literal["all", "none"] = "all"
    uses_lead: bool = True
    preload: PreloadRule | Literal["best"] = "best"
    allocate: Literal["paper", "gain", "exact"] = "gain"
    is_anytime: bool = True
    best_effort: bool = False
    margin: float = 0.0
    patience: float = 0.5
    io_reserve: float = 1.0
    errors: tuple[float, ...] = LLOYD_ERRORS

    def __post_init__(self) -> None:
        if not (0 <= self.similar < 1 and 0 <= self.margin < 1 and 0 <= self.patience <= 1):
            raise BudgetError("similar and margin lie in [0, 1), patience in [0, 1]; got "
                              f"{self.similar}, {self.margin}, {self.patience}.")  # fmt: skip
        if self.io_reserve < 1:
            raise BudgetError(f"an IO reserve is a factor of at least 1, not {self.io_reserve}.")


OURS = PlanOptions()
PAPER = PlanOptions(
    slack="none",
    uses_lead=False,
    preload="shards",
    allocate="paper",
    is_anytime=False,
    errors=EQUAL_POPULATION_ERRORS,
)

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
    problem = _Problem(shape, costs, budget, importance, options, held)
    all_of = submodels(shape.n_layers, shape.widths, costs)
    order = rank(fitting(all_of, problem.usable_s), options.similar)
    attempts = (problem.attempt(c) for c in order)
    chosen = (
        next((a for a in attempts if a), None) if accuracy is None else _most_accurate(attempts, accuracy)
    )
    skipped = 0 if chosen is None else order.index(chosen.submodel)
    if chosen is None:
        chosen = _smallest(problem, all_of)
    draft = problem.draft(chosen, order[:skipped] if accuracy is None else (), accuracy)
    return assemble(
        draft,
        shape,
        costs,
        budget,
        expected=expected,
        errors=options.errors,
        margin=options.margin,
        patience=options.patience,
        arena_bytes=arena_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A submodel with its preload set, at the lowest bits; `needs_s` is the usable time it takes."""

    submodel: Submodel
    layers: tuple[int, ...]
    weights: Float[np.ndarray, "n m"]
    held: Held
    rule: str
    ledger: Ledger
    uniform: int
    needs_s: float


@dataclass(frozen=True, slots=True)
class _Problem:
    shape: StoreShape
    costs: CostTable
    budget: Budget
    importance: Float[np.ndarray, "N M"]
    options: PlanOptions
    held: Int[np.ndarray, "N M"] | None

    def __post_init__(self) -> None:
        expected = (self.shape.n_layers, self.shape.n_slices)
        for name, array in (("importance", self.importance), ("held", self.held)):
            if array is not None and array.shape != expected:
                raise BudgetError(f"{name} has shape {array.shape}, but the store is {expected}.")

    @property
    def usable_s(self) -> float:
        """T without tokenising, embedding and head."""
        return self.budget.latency_s * (1 - self.options.margin) - self.overhead_s

    @property
    def overhead_s(self) -> float:
        return self.costs.tokenise_s + self.costs.embed_s + self.costs.head_s

    def attempt(self, c: Submodel) -> "_Attempt | None":
        """The best preload set for `c`; None when even the lowest bits miss the target."""
        best: _Attempt | None = None
        best_value = -1.0
        for attempt in self.preloaded(c):
            if attempt.needs_s > self.usable_s + TOLERANCE_S:
                continue
            trial = attempt.ledger.copy()
            uniform = fill_uniform(trial, trial.below(FULL_BITS)) if self.may_read(c) else LOWEST_BITS
            value = fidelity(trial.bits, attempt.weights, self.options.errors)
            if value > best_value + 1e-12:
                best, best_value = replace(attempt, uniform=uniform), value
        return best

    def may_read(self, c: Submodel) -> bool:
        """False when `c` fits only as long as no IO slows its compute."""
        return c.n * self.costs.layer(c.m).busy_s <= self.usable_s + TOLERANCE_S

    def preloaded(self, c: Submodel) -> Iterator[_Attempt]:
        layers = picked_layers(self.shape.n_layers, c.n)
        weights = weights_of(self.importance[list(layers), : c.m].astype(np.float64))
        if self.held is not None:
            yield self.floor(c, layers, weights, self.held[list(layers), : c.m].astype(np.int64), "held")
            return
        seen = set()
        for rule, bits in self.rules():
            held = preload(self.shape, c.n, c.m, self.budget.preload_bytes, rule, bits)
            if held.tobytes() not in seen:
                seen.add(held.tobytes())
                yield self.floor(c, layers, weights, held, rule)

    def rules(self) -> Iterator[tuple[PreloadRule, int]]:
        best: tuple[PreloadRule, ...] = ("base", "planes")  # whole shards are never better than planes
        for rule in best if self.options.preload == "best" else (self.options.preload,):
            yield from ((rule, bits) for bits in BITS if bits >= LOWEST_BITS)

    def floor(
        self, c: Submodel, layers: tuple[int, ...], weights: Float[np.ndarray, "n m"], held: Held, rule: str
    ) -> _Attempt:
        """`c` with every shard at the lowest bits, its AIBs and the time that takes."""
        options, costs = self.options, self.costs
        layer_s = costs.layer(c.m).busy_s
        lead_s = costs.embed_s if options.uses_lead else 0.0
        disk = costs.disk.times(costs.io_slowdown)
        chunk = self.shape.n_slices
        if options.is_anytime:
            # A read that nobody waits for any more delays the next: keep each under a quarter layer.
            chunk = max(1, int(layer_s / 4 / (self.shape.full_bytes / disk.bandwidth_Bps)))
        ledger = Ledger(
            self.shape, c.m, disk, [lead_s + k * layer_s for k in range(c.n)], held,
            is_anytime=options.is_anytime, full_chunk=chunk,
        )  # fmt: skip
        fill_floor(ledger)
        stall_s = max(0.0, -min(ledger.spare_s))
        if options.io_reserve > 1:
            read_s = np.cumsum(ledger.load_s)
            stall_s = max(stall_s, float((read_s * (options.io_reserve - 1) - ledger.spare_s).max()))
        reads = any(ledger.load_s)
        needs_s = c.n * layer_s + stall_s if reads else c.compute_s
        slack_s = stall_s if options.slack == "none" else max(stall_s, self.usable_s - c.n * layer_s)
        ledger.grant(slack_s)
        return _Attempt(c, layers, weights, held, rule, ledger, LOWEST_BITS, needs_s)

    def draft(self, a: _Attempt, skipped: Sequence[Submodel], accuracy: AccuracyGrid | None) -> Draft:
        """Spend the AIBs of `a` on bits and say why."""
        ledger = a.ledger
        fits = a.needs_s <= self.usable_s + TOLERANCE_S
        if fits and self.may_read(a.submodel) and ledger.is_valid:
            ledger = self.allocate(ledger, a.weights)
        bits = tuple(tuple(row) for row in ledger.bits)
        loads = tuple(ledger.load(k, layer) for k, layer in enumerate(a.layers))
        bonus_s = np.cumsum([ledger.held_seconds(k) for k in range(ledger.n)])
        budgets_s = np.asarray(ledger.spare_s) + np.cumsum(ledger.load_s)
        return Draft(
            name="ours",
            layers=a.layers,
            width=a.submodel.m,
            bits=bits,
            held=a.held,
            loads=loads,
            weights=a.weights,
            slack_s=ledger.granted_s,
            aib_start_s=tuple((budgets_s + bonus_s).tolist()),
            aib_s=tuple(0.0 if abs(x) < TOLERANCE_S else x for x in ledger.spare_s),
            reasons=self.reasons(a, bits, ledger, skipped, accuracy),
            is_anytime=self.options.is_anytime,
        )

    def allocate(self, ledger: Ledger, weights: Float[np.ndarray, "n m"]) -> Ledger:
        errors = self.options.errors
        uniform = ledger.copy()
        if self.options.allocate == "paper":
            unheld = [
                sum(1 << s for s, h in enumerate(row) if h < LOWEST_BITS) for row in ledger.held.tolist()
            ]
            fill_uniform(uniform, unheld)
            fill_by_importance(uniform, weights)
            return uniform
        if self.options.allocate == "exact":
            from pliant.plan.exact import fill_exact  # the solver is loaded where it is asked for

            fill_exact(uniform, weights, errors)
            return uniform
        if fill_uniform(uniform, uniform.below(FULL_BITS)) == FULL_BITS:
            return uniform
        fill_by_gain(uniform, weights, errors, by_layer=True)
        single = ledger.copy()
        fill_by_gain(single, weights, errors, by_layer=False)
        return max((uniform, single), key=lambda x: fidelity(x.bits, weights, errors))

    def reasons(
        self, a: _Attempt, bits: Grid, ledger: Ledger, skipped: Sequence[Submodel],
        accuracy: AccuracyGrid | None,
    ) -> tuple[str, ...]:  # fmt: skip
        c, T = a.submodel, self.budget.latency_s
        usable = f"{self.usable_s * 1e3:.1f} ms of {T * 1e3:.1f} ms are left for layers"
        said = [f"{usable}: {c.n}x{c.m} computes in {c.compute_s * 1e3:.1f} ms"]
        if accuracy is not None:
            at = _accuracy_of(a, accuracy)
            said.append(f"{c.n}x{c.m} measured {100 * at:.1f} % at {a.uniform} bits, the most within reach")
        else:
            said += self.why_not(skipped)
        if a.needs_s > self.usable_s + TOLERANCE_S:
            said.append("the target cannot be met: this is the smallest submodel, at the lowest bits")
        if a.held.any():
            said.append(
                f"{int((a.held > 0).sum())} of {a.held.size} shards start from memory (rule: {a.rule})"
            )
        if not any(ledger.load_s):
            said.append("the preload buffer holds everything that runs: nothing is read at run time")
        elif a.held.min() < LOWEST_BITS and ledger.load_s[0] > 0 and not self.costs.embed_s:
            said.append(f"the first layer waits {ledger.load_s[0] * 1e3:.2f} ms for its own load")
        if all(b == FULL_BITS for row in bits for b in row):
            said.append("every shard runs at full fidelity")
        elif any(ledger.load_s):
            tight = int(np.argmin(ledger.spare_s))
            said.append(
                f"IO is spent up to layer {a.layers[tight]}: {ledger.spare_s[tight] * 1e3:.2f} ms are left"
            )
        return tuple(said)

    def why_not(self, skipped: Sequence[Submodel]) -> Iterator[str]:
        """Why the submodels that compute in time, and would be preferred, do not run."""
        slowed = [s for s in skipped if not self.may_read(s)]
        starved = [s for s in skipped if self.may_read(s)]
        for those, why in (
            (slowed, "take too long to compute while IO runs"),
            (starved, f"cannot read even {LOWEST_BITS}-bit shards in time"),
        ):
            if those:
                names = ", ".join(f"{s.n}x{s.m}" for s in those[:3]) + (" ..." if those[3:] else "")
                yield f"larger {names} {why}"


def _most_accurate(attempts: Iterator["_Attempt | None"], accuracy: AccuracyGrid) -> "_Attempt | None":
    feasible = [a for a in attempts if a]
    return max(feasible, key=lambda a: (_accuracy_of(a, accuracy), -a.needs_s), default=None)


def _accuracy_of(a: _Attempt, accuracy: AccuracyGrid) -> float:
    """Measured accuracy at the highest measured bits that do not exceed the reachable ones."""
    c = a.submodel
    known = [b for (n, m, b) in accuracy if (n, m) == (c.n, c.m)]
    if not known:
        return -1.0
    return accuracy[c.n, c.m, max((b for b in known if b <= a.uniform), default=min(known))]


def _smallest(problem: _Problem, candidates: Sequence[Submodel]) -> _Attempt:
    """The submodel that needs the least time; raises BudgetError unless best effort is asked for."""
    shallow = [c for c in candidates if c.n == 1]
    attempts = [a for c in shallow for a in problem.preloaded(c)]
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
