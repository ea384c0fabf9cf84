"""A partitioner's decision, with its reasons."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pliant.ir.partition import Partition


@dataclass(frozen=True, slots=True)
class RunOption:
    """One way to run: its predicted seconds, infinite if weights do not fit; for a mode, its partition."""

    what: str
    seconds: float
    partition: Partition | None = None

    @property
    def is_unfit(self) -> bool:
        """Whether no plan of it fits in memory."""
        return not isfinite(self.seconds)


@dataclass(frozen=True, slots=True)
class Decision:
    """A partition with its predictions.

    `seconds` are predicted from input to answer, `weight_bytes` the weights that each device holds. `reasons`
    are sentences for people. No partition of the same mode takes less than `bound_s` (None: not requested, or
    unknown).
    """

    partition: Partition
    seconds: float
    weight_bytes: Mapping[str, int]
    considered: tuple[RunOption, ...]
    reasons: tuple[str, ...]
    bound_s: float | None = None

    @property
    def mode(self) -> str:
        return self.partition.mode

    @property
    def gap(self) -> float | None:
        """The largest fraction of `seconds` that a better partition might save."""
        return None if self.bound_s is None else 1 - self.bound_s / self.seconds
