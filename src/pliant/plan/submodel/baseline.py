"""The systems that STI is compared with (its Table 4), as planners of the same Plan type.

With an accuracy grid, each takes the submodel of the highest expected accuracy at its bits among those that
end in time, by the rules of `search.plan`; with `options.choose` "size" (the paper's rule), the one with most
slices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.arrays import Float
from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import EMBED, HEAD, TOKENISE, Cost
from pliant.models.spec import picked_layers
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.accuracy import AccuracyCurves, AccuracyGrid, accuracy_curves
from pliant.plan.submodel.assemble_plan import PlanDraft, assemble, pipeline
from pliant.plan.submodel.io_plan import Ledger, importance_weights
from pliant.plan.submodel.prices import disk_during_compute, layer_seconds
from pliant.plan.submodel.search import OURS, PlanOptions
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import (
    BEST_EFFORT,
    Submodel,
    allowed_submodels,
    choose_most_accurate,
    cut_reason,
    depths_advice,
    rank_submodels,
    submodels,
    untrained_reason,
)
from pliant.quantities import format_seconds, format_seconds_up


def load_and_execute(
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    importance: Float[np.ndarray, "N M"],
    options: PlanOptions = OURS,
    *,
    expected: Cost | None = None,
    accuracy: AccuracyGrid | None = None,
) -> Plan:
    """Load the whole submodel at full fidelity, then execute it.

    Without an accuracy grid, or with `options.choose` "size", it is the submodel whose total is closest to T
    (STI, Table 4); then no target is infeasible. With a grid, it is the most accurate one that ends in time
    or, if none does, the fastest.
    """
    job = _BaselineProblem(
        shape, costs, budget, importance, options, expected, _accuracy_curves(accuracy, options)
    )
    totals = {c: job.end_s(c, FULL_BITS, is_pipelined=False) for c in job.submodels}
    if job.by_accuracy:
        fits = [c for c in totals if totals[c] <= job.usable_s + 1e-9]
        chosen = job.best(fits, FULL_BITS) if fits else min(totals, key=lambda c: totals[c])
        which = "of all submodels in time the most accurate" if fits else "no submodel is in time"
    else:
        chosen = min(totals, key=lambda c: (abs(totals[c] - job.usable_s), -c.n_shards, -c.n))
        which = "of all submodels closest to the target"
    why = f"reading, then computing takes {totals[chosen] * 1e3:.1f} ms: {which}"
    return job.plan("load&exec", chosen, FULL_BITS, why, is_pipelined=False)


def standard_pipeline(
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    importance: Float[np.ndarray, "N M"],
    bits: int,
    options: PlanOptions = OURS,
    *,
    expected: Cost | None = None,
    accuracy: AccuracyGrid | None = None,
) -> Plan:
    """StdPL-X: the same bits everywhere, layers read while earlier ones compute, nothing preloaded.

    Raises BudgetError if no submodel ends within T, unless `options.best_effort`.
    """
    job = _BaselineProblem(
        shape, costs, budget, importance, options, expected, _accuracy_curves(accuracy, options)
    )
    fits = [c for c in job.submodels if job.end_s(c, bits) <= job.usable_s + 1e-9]
    chosen = job.in_time(fits, bits, lambda c: job.end_s(c, bits))
    why = f"the {job.rule} whose pipeline ends in time at {bits} bits everywhere"
    return job.plan(f"stdpl-{_bits_name(bits)}", chosen, bits, why)


def preload_model(
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    importance: Float[np.ndarray, "N M"],
    bits: int,
    options: PlanOptions = OURS,
    *,
    expected: Cost | None = None,
    accuracy: AccuracyGrid | None = None,
) -> Plan:
    """PreloadModel-X: the whole N x M model in memory at the same bits, so only compute counts.

    Raises BudgetError if no submodel computes within T, unless `options.best_effort`.
    """
    job = _BaselineProblem(
        shape, costs, budget, importance, options, expected, _accuracy_curves(accuracy, options)
    )
    fits = [c for c in job.submodels if c.compute_s <= job.usable_s + 1e-9]
    chosen = job.in_time(fits, bits, lambda c: c.compute_s)
    why = f"the whole model is held at {bits} bits, so the {job.rule} that computes in time runs"
    return job.plan(f"preload-{_bits_name(bits)}", chosen, bits, why, is_held=True)


@dataclass(frozen=True, slots=True)
class _UniformSubmodel:
    """A submodel with the same bits everywhere."""

    submodel: Submodel
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class _BaselineProblem:
    shape: StoreShape
    costs: Cost
    budget: Budget
    importance: Float[np.ndarray, "N M"]
    options: PlanOptions
    expected: Cost | None
    known: AccuracyCurves

    @property
    def usable_s(self) -> float:
        """T without tokenising and head: the limit for the pipeline, including the embedding."""
        return (
            self.budget.target_s * (1 - self.options.margin)
            - self.costs.seconds(TOKENISE)
            - self.costs.seconds(HEAD)
        )

    @property
    def submodels(self) -> tuple[Submodel, ...]:
        """The submodels that may run, by the same rule as in `search.plan`."""
        every = submodels(self.shape.n_layers, self.shape.widths, self.costs)
        return allowed_submodels(every, self.shape, self.options.depths, self.known.places)

    @property
    def by_accuracy(self) -> bool:
        """Whether submodels are chosen by measured accuracy."""
        return self.options.choose == "accuracy" and bool(self.known.places)

    @property
    def rule(self) -> str:
        return "most accurate" if self.by_accuracy else "largest"

    def accuracy(self, c: Submodel, bits: int) -> float | None:
        """Return the expected accuracy of `c` with all shards at `bits`."""
        return self.known.at(c.n, c.m, 1.0 if bits == FULL_BITS else 1.0 - self.options.errors[bits])

    def ledger(self, c: Submodel, bits: int, held: np.ndarray) -> Ledger:
        if bits not in self.shape.bits:
            offered = ", ".join(map(str, self.shape.bits))
            raise BudgetError(
                f"this baseline runs {bits} bits, but the store offers {offered}: choose another baseline, "
                f"or pack the model with {bits} among --bits."
            )
        disk = disk_during_compute(self.costs)
        ledger = Ledger(
            self.shape, c.m, disk, [0.0] * c.n, held, is_anytime=False, full_chunk=self.shape.n_slices
        )
        ledger.force(ledger.shards_below(bits), bits)
        return ledger

    def end_s(self, c: Submodel, bits: int, *, is_pipelined: bool = True) -> float:
        """Return the end of the last layer, from the end of tokenising."""
        load_s = self.ledger(c, bits, np.zeros((c.n, c.m), dtype=np.int64)).load_s
        layer_s = layer_seconds(self.costs, c.m, with_io=is_pipelined)
        return pipeline(load_s, layer_s, self.costs.seconds(EMBED), c.n, is_pipelined=is_pipelined)[1]

    def best(self, fits: Sequence[Submodel], bits: int) -> Submodel:
        """The one of `fits` that the rule selects; at full fidelity the whole model, if it is in time."""
        order = rank_submodels(fits, self.options.similar)
        largest = order[0]
        is_whole = (largest.n, largest.m) == (self.shape.n_layers, self.shape.n_slices)
        if not self.by_accuracy or (is_whole and bits == FULL_BITS):
            return largest
        found = choose_most_accurate(
            order, self.known, lambda c, _: _UniformSubmodel(c, self.accuracy(c, bits))
        )
        return largest if found is None else found.submodel

    def in_time(self, fits: Sequence[Submodel], bits: int, seconds: Callable[[Submodel], float]) -> Submodel:
        """Return the best of `fits`; if there is none, the fastest by `seconds` or BudgetError."""
        if fits:
            return self.best(fits, bits)
        least = min(self.submodels, key=seconds)
        if self.options.best_effort:
            return least
        needs_s = seconds(least) + self.budget.target_s - self.usable_s
        raise BudgetError(
            f"no submodel answers within {format_seconds(self.budget.target_s)}; the nearest feasible is "
            f"{format_seconds_up(needs_s)} ({least.n}x{least.m}). Raise the latency target, or {BEST_EFFORT}."
            f"{depths_advice(self.shape, least)}"
        )

    def plan(
        self, name: str, c: Submodel, bits: int, why: str, *, is_pipelined: bool = True, is_held: bool = False
    ) -> Plan:
        layers = picked_layers(self.shape.n_layers, c.n)
        held = np.full((c.n, c.m), bits if is_held else 0, dtype=np.int64)
        ledger = self.ledger(c, bits, held)
        layer_s = layer_seconds(self.costs, c.m, with_io=True)
        aib_start_s = tuple(k * layer_s for k in range(c.n))
        cut = cut_reason(self.shape, c.n, c.m, self.known.places)
        draft = PlanDraft(
            name=name,
            layers=layers,
            width=c.m,
            bits=tuple(tuple(row) for row in ledger.bits),
            held=held,
            loads=tuple(ledger.load(k, layer) for k, layer in enumerate(layers)),
            weights=importance_weights(self.importance[list(layers), : c.m].astype(np.float64)),
            slack_s=0.0,
            aib_start_s=aib_start_s,
            aib_s=tuple((np.asarray(aib_start_s) - np.cumsum(ledger.load_s)).tolist()),
            reasons=(why, untrained_reason(self.shape, c)) if cut == "untrained" else (why,),
            is_pipelined=is_pipelined,
            cut=cut,
        )
        whole = self.shape.n_layers * self.shape.n_slices * self.shape.shard_bytes(bits)
        made = assemble(
            draft,
            self.shape,
            self.costs,
            self.budget,
            expected=self.expected,
            errors=self.options.errors,
            margin=self.options.margin,
            preload_bytes=whole if is_held else 0,
        )
        return replace(made, expected_accuracy=self.accuracy(c, bits))


def _accuracy_curves(accuracy: AccuracyGrid | None, options: PlanOptions) -> AccuracyCurves:
    return accuracy_curves(accuracy or {}, options.errors)


def _bits_name(bits: int) -> str:
    return "full" if bits == FULL_BITS else str(bits)
