"""The longest input that an elastic session has memory for."""

from dataclasses import replace
from typing import final

from pliant.errors import BudgetError
from pliant.ir.curve import Curve, limit
from pliant.ir.endpoint import ServiceLevel
from pliant.run.submodel.plans.memory_split import least_weight_bytes, most_tokens
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.run.submodel.submodel_runner import SubmodelRunner
from pliant.run.submodel.submodel_share import SubmodelShare


@final
class LengthLimit:
    """What lengths the memory of `runner` leaves: its own limit, or that of the budget of its `share`.

    A longer input needs more memory for activations. A runner for which one plan is `is_fixed` has no limit.
    """

    def __init__(self, runner: SubmodelRunner, share: SubmodelShare | None, *, is_fixed: bool) -> None:
        self._runner, self._share, self._is_fixed = runner, share, is_fixed
        self._options: SessionOptions | None = None
        self._own: int | None = None
        self._given: tuple[ServiceLevel, ...] = ()
        self._limited: tuple[tuple[ServiceLevel, ...], int | None] = (), None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of an input; None if there is memory for all that the model takes."""
        most = self._own_limit() if self._share is None else self._share.most_tokens
        return None if most is None or most >= self._runner.store.spec.max_tokens else most

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
        most = self.most_tokens
        if most is None:
            return levels
        if self._given is not levels or self._limited[1] != most:
            self._given, self._limited = levels, (tuple(level.limited(most) for level in levels), most)
        return self._limited[0]

    def _own_limit(self) -> int | None:
        """The limit by `options.memory_bytes`, calculated anew when the options change."""
        options = replace(self._runner.options, most_preload_bytes=None, most_working_bytes=None)
        if options.memory_bytes is None or self._is_fixed:
            return None
        if options != self._options:
            asked = (options.preload_bytes or 0) + (options.working_bytes or 0)
            least = max(least_weight_bytes(self._runner.planner, options), asked)
            store, most_bytes = self._runner.store, options.memory_bytes - least
            self._own, self._options = most_tokens(store, options.compute, most_bytes), options
        return self._own
