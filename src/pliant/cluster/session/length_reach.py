"""The longest input that a cluster's devices have memory for."""

from collections.abc import Callable, Mapping
from typing import final

from pliant.cluster.lead.predict import Prediction
from pliant.cluster.watch.adapt import GROWTH, Topology, find_overloaded
from pliant.errors import BudgetError
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes

_FIRST = 8
"""The length whose plan is searched first."""
_PART = 16
"""A search takes longer than a run, so the longest input is found to this part of its length."""


@final
class LengthReach:
    """What lengths have a plan that fits in memory, found by `search`; the rest is fast and thread-safe."""

    def __init__(self) -> None:
        self.most_n: int | None = None
        """The longest input of the latest search; None if there is memory for all that the model takes."""
        self._need: Mapping[str, int] = {}
        self._free: Mapping[str, int] = {}

    def search(self, spec: EncoderSpec, solve: Callable[[int], Prediction]) -> Partition:
        """Find the longest input, to a sixteenth, and return its plan; `solve` raises BudgetError for an
        input without memory.

        A plan that was found is extended, with rows in proportion, before another one is searched. Raises
        BudgetError if there is memory for no input.
        """
        low, high = min(_FIRST, spec.max_rows), spec.max_rows + 1
        try:
            solved = solve(low)
        except BudgetError:
            low, high = 1, low
            solved = solve(low)
        longest = _extended(spec, solved, high)
        at = high - 1
        while high - longest.tokens > 1 + longest.tokens // _PART:
            try:
                solved = solve(at)
            except BudgetError:
                high = at
            else:
                longest = _extended(spec, solved, high)
            at = (longest.tokens + high) // 2
        self._need = memory_bytes(spec, longest)
        self._free = {name: device.free_bytes for name, device in solved.topology.capabilities.items()}
        self.most_n = None if longest.tokens == spec.max_rows else longest.tokens
        return longest

    def refuse(self, n: int) -> None:
        """Record that there was no memory for an input of length n."""
        self.most_n = n - 1 if self.most_n is None else min(self.most_n, n - 1)

    def is_stale(self, now: Topology) -> bool:
        """Return whether devices have less memory than that input needs, or may have it for longer ones."""
        if find_overloaded(self._need, now):
            return True
        free = {name: device.free_bytes for name, device in now.capabilities.items()}
        grown = (n > (1 + GROWTH) * self._free.get(name, n) for name, n in free.items())
        return self.most_n is not None and any(grown)


def _extended(spec: EncoderSpec, solved: Prediction, high: int) -> Partition:
    """Return the plan of `solved` with as many rows below `high` as there is memory for."""
    low = solved.partition.tokens
    at = high - 1
    while high - low > 1:
        if find_overloaded(memory_bytes(spec, solved.partition.resize(at)), solved.topology):
            high = at
        else:
            low = at
        at = (low + high) // 2
    return solved.partition.resize(low)
