"""One elastic session's share of a memory budget that several models share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import final

from pliant.errors import InputError
from pliant.ir.device import DeviceProfile
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.plans.elastic_holdings import holdings_of
from pliant.run.submodel.plans.memory_split import memory_overhead
from pliant.run.submodel.plans.submodel_planner import SessionOptions, planner_of
from pliant.run.submodel.submodel_runner import SubmodelRunner
from pliant.store.read import Store


@final
class SubmodelShare:
    """The share is the runner's memory limit; call with the lock of `memory` held.

    `on_change` is called after the weights in memory changed.
    """

    def __init__(self, memory: MemoryBudget, name: str, on_change: Callable[[], None]) -> None:
        self.name = name
        self._memory, self._on_change = memory, on_change
        self._runner: SubmodelRunner | None = None
        self._is_filled = True

    @property
    def held_bytes(self) -> int:
        runner = self._runner
        return 0 if runner is None else runner.held_bytes

    @property
    def least_bytes(self) -> int:
        """The least memory limit under which the session meets its target."""
        return self._holdings[0].n_bytes

    @property
    def most_other_bytes(self) -> int | None:
        """The most memory that the budget has for all but the weights of plans; None if it is closed."""
        most = self._memory.most_share_of(self)
        return None if most is None else most - self.least_bytes + self._overhead.total_bytes

    def open_runner(
        self, store: Store, device: DeviceProfile, options: SessionOptions, cache: Path | None
    ) -> SubmodelRunner:
        """The runner under its first share. Raises BudgetError if the budget is too small."""
        self._n_tokens = min(options.length, store.spec.max_tokens)
        self._overhead = memory_overhead(store, options.compute, self._n_tokens)
        self._holdings = holdings_of(planner_of(store.manifest, device), options, self._overhead)
        share = self._memory.join(self, self._holdings)
        try:
            bounded = replace(options, memory_bytes=share)
            self._runner = SubmodelRunner(store, device, bounded, cache=cache, frees_first=True)
        except BaseException:
            self.release()
            raise
        return self._runner

    def check_retarget(self, preload: object, memory: object) -> None:
        """Raise InputError for a change of options that the budget determines."""
        if (preload, memory) != (None, None):
            raise InputError(
                f"{self.name} shares {self._memory.total_bytes} bytes of memory with other models, which are "
                "divided by how often each is asked: open it with a `memory` of its own to choose its part."
            )

    def retarget(self, target_s: float) -> None:
        """Change the target, and with it the least memory; take more of the budget if it needs more.

        Raises BudgetError, changing nothing, if no plan meets the target or others cannot free enough.
        """
        runner = self._runner
        assert runner is not None
        options = replace(runner.options, target_s=target_s)
        holdings = holdings_of(runner.planner, options, self._overhead)
        share = self._memory.ensure_share(self, holdings[0].n_bytes, holdings)
        self._holdings = holdings
        self._shrink_within(share)
        runner.retarget(target_s, memory_bytes=None if share == options.memory_bytes else share)

    def hold(self, n_bytes: int) -> None:
        runner = self._runner
        assert runner is not None
        self._is_filled = False
        try:
            self._shrink_within(n_bytes)
            runner.retarget(memory_bytes=n_bytes)
            self._is_filled = True
        finally:
            self._on_change()

    def count_request(self, n_tokens: int) -> None:
        """Count a request for an input of `n_tokens`, and make room for its activations.

        Weights whose last read failed are read now. Raises BudgetError, changing nothing, if other models
        cannot free enough, and StoreError on damage.
        """
        runner = self._runner
        assert runner is not None
        self._memory.count_request(self)
        if not self._is_filled:
            assert runner.options.memory_bytes is not None
            self.hold(runner.options.memory_bytes)
        if n_tokens <= runner.engine.encoder.tokens:
            return
        least = self.least_bytes + self._more_bytes(n_tokens)
        share = self._memory.ensure_share(self, least)
        if share != runner.options.memory_bytes:
            runner.retarget(memory_bytes=share)
        runner.reserve(n_tokens)

    def _shrink_within(self, n_bytes: int) -> None:
        """Free the activations of longer inputs if they leave too little of `n_bytes` for weights."""
        assert self._runner is not None
        if n_bytes < self.least_bytes + self._more_bytes(self._runner.engine.encoder.tokens):
            self._runner.shrink(self._n_tokens)

    def _more_bytes(self, n_tokens: int) -> int:
        """The extra bytes of activations for inputs longer than the session's length."""
        assert self._runner is not None
        overhead = memory_overhead(self._runner.store, self._runner.options.compute, n_tokens)
        return overhead.total_bytes - self._overhead.total_bytes

    def rebalance(self) -> None:
        """Divide the budget anew; takes the lock itself."""
        self._memory.rebalance()

    def release(self) -> None:
        """Return the share to the budget."""
        self._memory.release(self)
        self._runner = None
