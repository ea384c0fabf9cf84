"""The longest input that an elastic session has memory for."""

from dataclasses import replace
from typing import final

from pliant.errors import BudgetError
from pliant.ir.curve import Curve, limit
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.limited_levels import LimitedLevels
from pliant.plan.plan import Plan
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.plans.memory_split import least_weight_bytes, most_tokens
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.run.submodel.submodel_runner import SubmodelRunner
from pliant.run.submodel.submodel_share import SubmodelShare
from pliant.store.container import BLOCK


@final
class LengthLimit:
    """What lengths the memory of `runner` leaves: its own limit, or its share or reservation in a budget.

    A longer input needs more memory for activations, beside the fewest weights with which a plan can run, or
    those of the one plan that is `fixed`. Within a reservation, the longest inputs may still be refused.
    Call `renew` with the lock held, when weights or options have changed; the rest is fast, and safe to call
    during an answer on another thread.
    """

    def __init__(
        self, runner: SubmodelRunner, budget: SubmodelShare | MemoryBudget | None, fixed: Plan | None
    ) -> None:
        self._runner, self._budget, self._fixed = runner, budget, fixed
        self._options: SessionOptions | None = None
        self._own_bytes: int | None = None
        self._least_bytes = 0
        self._seen: tuple[int | None, int | None] = None, None
        """The latest memory and the most tokens with it, replaced together, as several threads do."""
        self._levels = LimitedLevels()

    def renew(self) -> None:
        """Calculate the weights that are needed at least; this may take as long as planning."""
        options = self._runner.options
        self._own_bytes = options.memory_bytes
        if isinstance(self._budget, SubmodelShare) or (self._budget is None and self._own_bytes is None):
            return
        if self._fixed is not None:
            self._least_bytes = self._fixed.memory.weight_bytes
            return
        asked = (options.preload_bytes or 0) + (options.working_bytes or 0)
        if self._budget is not None:  # a reservation is made with as little room for reads as there is
            self._least_bytes = max(asked, (options.preload_bytes or 0) + BLOCK)
            return
        options = replace(options, most_preload_bytes=None, most_working_bytes=None)
        if options != self._options:  # weights change far more often
            self._least_bytes = max(least_weight_bytes(self._runner.planner, options), asked)
            self._options = options

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of an input; None if there is memory for all that the model takes."""
        other_bytes = self._other_bytes()
        seen_bytes, known = self._seen
        if other_bytes == seen_bytes:
            return known
        store, compute = self._runner.store, self._runner.options.compute
        most = None if other_bytes is None else most_tokens(store, compute, other_bytes)
        most = None if most == store.spec.max_tokens else most
        self._seen = other_bytes, most
        return most

    def check(self, n_tokens: int) -> None:
        """Raise BudgetError for an input that there is no memory for."""
        most = self.most_tokens
        if most is not None and n_tokens > most:
            raise BudgetError(
                f"an input of {n_tokens} tokens needs more memory than this session has, which is enough for "
                f"{most}: give it a shorter input, or more memory."
            )

    def curve(self, curve: Curve) -> Curve:
        """`curve` within the limit, and beyond every answer's time above it."""
        most = self.most_tokens
        return curve if most is None else limit(curve, most)

    def levels(self, levels: tuple[ServiceLevel, ...]) -> tuple[ServiceLevel, ...]:
        """`levels` with the limit; the same tuple until they or the limit change."""
        return self._levels.at(levels, self.most_tokens)

    def _other_bytes(self) -> int | None:
        """The memory for activations and for all that is not planned; None without a limit."""
        if isinstance(self._budget, SubmodelShare):
            return self._budget.most_other_bytes
        most = self._own_bytes if self._budget is None else self._budget.room_for(self._runner)
        return None if most is None else most - self._least_bytes
