"""What an input needs of an endpoint now, beyond what its length tells."""

from dataclasses import dataclass, replace

from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.timing import Timing


@dataclass(frozen=True, slots=True)
class InputNeeds:
    """`compiling` is the time to compile for the shape; None if that is done.

    There is memory for inputs of this shape up to length `most_n`; None without a limit. Exchanges of devices
    by radio would add `tail_j` joules now (`Candidate`).
    """

    compiling: Timing | None = None
    most_n: int | None = None
    tail_j: float = 0.0

    @property
    def compiling_s(self) -> float:
        return 0.0 if self.compiling is None else self.compiling.median_s

    def applied_to(self, levels: tuple[ServiceLevel, ...]) -> tuple[ServiceLevel, ...]:
        """Return the levels for this input."""
        if self.most_n is not None:
            levels = tuple(level.limited(self.most_n) for level in levels)
        return levels if self.compiling is None else tuple(_later(level, self.compiling) for level in levels)


NO_NEEDS = InputNeeds()


def _later(level: ServiceLevel, first: Timing) -> ServiceLevel:
    bound = None if level.bound is None else level.bound.plus(first.p95_s)
    return replace(level, curve=level.curve.plus(first.median_s), bound=bound)
