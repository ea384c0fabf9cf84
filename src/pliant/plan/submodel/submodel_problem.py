"""One submodel at a time: its preload set, whether it fits, and the bits that its AIBs afford."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.arrays import Float, Int
from pliant.errors import BudgetError
from pliant.ir.bitwidths import LOWEST_BITS
from pliant.ir.cost import EMBED, HEAD, TOKENISE, Cost
from pliant.models.spec import picked_layers
from pliant.plan.plan import Budget
from pliant.plan.submodel.assemble_plan import LEAST_WINDOW, granule_s, needed_window, working_bytes
from pliant.plan.submodel.bit_rows import fill_rows
from pliant.plan.submodel.io_plan import (
    TOLERANCE_S,
    HeldPlanes,
    Ledger,
    fidelity,
    fill_by_importance,
    fill_floor,
    fill_uniform,
    importance_weights,
)
from pliant.plan.submodel.plan_options import PlanOptions
from pliant.plan.submodel.preload_set import hold_in_order, preload
from pliant.plan.submodel.prices import disk_during_compute, layer_seconds
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import Submodel


@dataclass(frozen=True, slots=True)
class Attempt:
    """A submodel with a preload set. `ledger` has every shard at the lowest bits and the slack granted.

    `needs_s` is the usable time that it then needs; `uniform_fidelity` is that of the highest bits that all
    its shards can have.
    """

    submodel: Submodel
    layers: tuple[int, ...]
    weights: Float[np.ndarray, "n m"]
    held: HeldPlanes
    rule: str
    ledger: Ledger
    needs_s: float
    uniform_fidelity: float = 0.0


@dataclass(frozen=True, slots=True)
class SubmodelProblem:
    """A planning problem, and the parts of a solution for one submodel."""

    shape: StoreShape
    costs: Cost
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
    def overhead_s(self) -> float:
        return self.costs.seconds(TOKENISE) + self.costs.seconds(EMBED) + self.costs.seconds(HEAD)

    @property
    def usable_s(self) -> float:
        """T without tokenising, embedding and head."""
        return self.budget.target_s * (1 - self.options.margin) - self.overhead_s

    @property
    def is_reserved(self) -> bool:
        """True if base planes come first, because IO may slow down."""
        return self.options.reserve > 1

    def fits(self, a: Attempt) -> bool:
        return a.needs_s <= self.usable_s + TOLERANCE_S and self.holds(a)

    def holds(self, a: Attempt) -> bool:
        """Return whether the working memory suffices for `a` at the lowest bits."""
        limit = self.budget.working_bytes
        return a.ledger.is_within_limit and (limit is None or self.working(a, a.ledger) <= limit)

    def holds_two(self, a: Attempt) -> bool:
        """Return whether two layers at a time, at the lowest bits, fit in memory, however long that takes."""
        limit = self.budget.working_bytes
        loads = [a.ledger.load(k, layer) for k, layer in enumerate(a.layers)]
        return a.ledger.is_within_limit and (
            limit is None or working_bytes(self.shape, loads, LEAST_WINDOW) <= limit
        )

    def may_read(self, c: Submodel) -> bool:
        """Return False if `c` meets the target only without concurrent IO."""
        return c.n * layer_seconds(self.costs, c.m, with_io=True) <= self.usable_s + TOLERANCE_S

    def attempt(self, c: Submodel) -> Attempt | None:
        """Return the best preload set for `c` by the fidelity of uniform bits; None if nothing fits."""
        best: Attempt | None = None
        if self.held is not None or self.options.preload == "first":
            return next(filter(self.fits, self.attempts(c)), None)
        fitting = [a for a in self.attempts(c) if self.fits(a)]
        if len(fitting) == 1:
            return fitting[0]
        for a in fitting:
            trial = a.ledger.copy()
            if self.may_read(c):
                fill_uniform(trial, trial.shards_below(trial.ladder[-1]))
            value = fidelity(trial.bits, a.weights, self.options.errors)
            if best is None or value > best.uniform_fidelity + 1e-12:
                best = replace(a, uniform_fidelity=value)
        return best

    def fidelity_bound(self, a: Attempt) -> float:
        """Return an upper bound on the fidelity of any allocation for `a`.

        All of the last AIB, and the value of the preload buffer, buys single planes in order of gain, without
        latencies; where full fidelity is stored, the last plane (or, of two planes, a third) counts as that.
        """
        ledger, errors = a.ledger, self.options.errors
        bonus_s = sum(map(ledger.held_seconds, range(ledger.n)))
        if a.rule == "first":
            bonus_s = max(bonus_s, self.budget.preload_bytes / self.shape.plane_bytes * ledger.plane_s)
        room_s = ledger.spare_s[-1] + sum(ledger.load_s) + bonus_s
        planes = max(0.0, room_s / ledger.plane_s - a.weights.size * LOWEST_BITS)
        drop = -np.diff(_best_errors(self.shape, errors))
        gains = np.sort((a.weights[:, :, None] * drop).ravel())[::-1]
        bought = gains[: int(np.ceil(planes))].sum()
        return float(1 - errors[LOWEST_BITS] + bought / a.weights.sum())

    def attempts(self, c: Submodel) -> Iterator[Attempt]:
        """Yield `c` with each preload set that its rule allows."""
        layers = picked_layers(self.shape.n_layers, c.n)
        weights = importance_weights(self.importance[list(layers), : c.m].astype(np.float64))
        for held, rule in self._preload_sets(c, layers):
            yield self._floor(c, layers, weights, held, rule)

    def allocate(self, a: Attempt) -> tuple[Ledger, HeldPlanes]:
        """Return the bits that the AIBs of `a` afford, and their preload set.

        Of several preload sets in a fixed order (rule "first"), the one with the most valuable bits: the bits
        for each set never get worse with more time or memory, so neither does the best of them.
        """
        among = [a]
        if a.rule == "first" and self.fits(a):
            among = [other for other in self.attempts(a.submodel) if self.fits(other)]
        return max(
            map(self._allocate, among), key=lambda x: fidelity(x[0].bits, a.weights, self.options.errors)
        )

    def _allocate(self, a: Attempt) -> tuple[Ledger, HeldPlanes]:
        if not (self.fits(a) and self.may_read(a.submodel) and a.ledger.is_valid):
            return a.ledger, a.held
        made = self._spend(a.ledger, a.weights)
        limit = self.budget.working_bytes
        if limit is None or self.working(a, made) <= limit:
            return made, a.held
        windows = sorted({min(w, len(a.layers)) for w in (2, 3, 4, len(a.layers))})
        choices = [a.ledger, *(c for w in windows for c in self._within(a, w, limit))]
        return max(choices, key=lambda x: fidelity(x.bits, a.weights, self.options.errors)), a.held

    def _within(self, a: Attempt, window: int, limit: int) -> Iterator[Ledger]:
        """Yield the bits that the AIBs afford if `window` layers share `limit` bytes of working memory."""
        most = self.budget.layer_bytes
        layer_bytes = limit // window if most is None else min(limit // window, most)
        for _ in range(3):
            ledger = a.ledger.copy()
            ledger.limit_bytes = layer_bytes
            if not ledger.is_valid:
                return
            made = self._spend(ledger, a.weights)
            over = self.working(a, made) - limit
            if over <= 0:
                yield made
                return
            layer_bytes -= -(-over // window)  # whole blocks, or a window of more layers, take more

    def working(self, a: Attempt, ledger: Ledger) -> int:
        """Return the memory of the layers in flight of `a` at the bits of `ledger`."""
        loads = [ledger.load(k, layer) for k, layer in enumerate(a.layers)]
        options = self.options
        window = needed_window(
            self.shape, self.costs, self.budget, loads, a.submodel.m, margin=options.margin,
            io_reserve=options.reserve,
        )  # fmt: skip
        return working_bytes(self.shape, loads, window)

    def _preload_sets(self, c: Submodel, layers: tuple[int, ...]) -> Iterator[tuple[HeldPlanes, str]]:
        if self.held is not None:
            yield self.held[list(layers), : c.m].astype(np.int64), "kept from earlier runs"
            return
        n_bytes, rule = self.budget.preload_bytes, self.options.preload
        if rule == "first":
            yield from ((held, rule) for held in self._first_sets(c))
            return
        seen = set()
        for bits in self.shape.bits:
            held = preload(self.shape, c.n, c.m, n_bytes, rule, bits)
            if held.tobytes() not in seen:
                seen.add(held.tobytes())
                yield held, rule

    def _first_sets(self, c: Submodel) -> Iterator[HeldPlanes]:
        """Yield sets with the lowest planes of all layers first; also with a head start for layer 0."""
        disk = disk_during_compute(self.costs)
        seek = disk.latency_s / disk.seconds(self.shape.plane_bytes, 0)
        row_s = disk.seconds(c.m * self.shape.plane_bytes)
        together, ahead = (
            hold_in_order(self.shape, c.n, c.m, self.budget.preload_bytes, seek=seek, later=later)
            for later in (0.0, layer_seconds(self.costs, c.m, with_io=True) / row_s)
        )
        yield together
        if not np.array_equal(together, ahead):
            yield ahead

    def _ledger(self, c: Submodel, held: HeldPlanes) -> Ledger:
        """Return the AIBs of `c` without slack and without debits."""
        layer_s = layer_seconds(self.costs, c.m, with_io=True)
        lead_s = self.costs.seconds(EMBED) if self.options.uses_lead else 0.0
        disk = disk_during_compute(self.costs)
        # An obsolete read delays the next one: keep each under a quarter layer.
        quarter_s = 0.0 if self.is_reserved else layer_s / 4
        chunk = max(1, int(quarter_s / disk.seconds(self.shape.full_bytes, 0)))
        planes = max(1, int(quarter_s / disk.seconds(c.m * self.shape.plane_bytes)))
        return Ledger(
            self.shape, c.m, disk, [lead_s + k * layer_s for k in range(c.n)], held,
            is_anytime=self.options.is_anytime, full_chunk=chunk, planes_per_load=planes,
            limit_bytes=self.budget.layer_bytes,
        )  # fmt: skip

    def _floor(
        self,
        c: Submodel,
        layers: tuple[int, ...],
        weights: Float[np.ndarray, "n m"],
        held: HeldPlanes,
        rule: str,
    ) -> Attempt:
        ledger = self._ledger(c, held)
        fill_floor(ledger)
        stall_s = max(0.0, -min(ledger.spare_s))
        if self.is_reserved:
            slower_s = np.cumsum(ledger.load_s) * (self.options.reserve - 1)
            stall_s = max(stall_s, float((slower_s - ledger.spare_s).max()))
        busy_s = c.n * layer_seconds(self.costs, c.m, with_io=True)
        self._grant(ledger, stall_s if self.options.slack == "none" else max(stall_s, self.usable_s - busy_s))
        needs_s = busy_s + stall_s if any(ledger.load_s) else c.compute_s
        return Attempt(c, layers, weights, held, rule, ledger, needs_s)

    def _grant(self, ledger: Ledger, slack_s: float) -> None:
        ledger.grant(slack_s)
        if self.is_reserved:
            disk = disk_during_compute(self.costs)
            ledger.reserve(self.options.reserve, granule_s(self.shape, disk, ledger.m))

    def _spend(self, ledger: Ledger, weights: Float[np.ndarray, "n m"]) -> Ledger:
        errors = self.options.errors
        uniform = ledger.copy()
        if self.options.allocate == "paper":
            fill_uniform(uniform, ledger.unheld_shards())
            fill_by_importance(uniform, weights)
            return uniform
        if self.options.allocate == "exact":
            from pliant.plan.submodel.exact_bits import (
                fill_exact,  # the solver is imported only when requested
            )

            fill_exact(uniform, weights, errors)
            return uniform
        return fill_rows(ledger, weights, errors)


def _best_errors(shape: StoreShape, errors: Sequence[float]) -> tuple[float, ...]:
    """Return lower bounds on the error of a shard with the lowest bits, and with each plane more."""
    if not shape.has_full:
        return tuple(errors[LOWEST_BITS : shape.planes + 1])
    return (*errors[LOWEST_BITS : max(shape.planes, LOWEST_BITS + 1)], 0.0)
