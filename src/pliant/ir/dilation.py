"""How many times longer than by its measured costs a device takes."""

from dataclasses import dataclass
from typing import assert_never

from pliant.errors import InputError, ProfileError
from pliant.ir.program import Compute, Exchange, Load, Work


@dataclass(frozen=True, slots=True)
class Dilation:
    """How many times longer than measured a device takes for what it computes (`compute`) and reads (`io`).

    An emulated device does so by choice, and never less than once. What a plan allows for follows the latest
    answers, and is below 1 for what has become faster. `compute` is of all that the processor does: layers,
    embedding, head, tokenising, and the Python between them; `io` is of reads, the latency of each included.
    `by_width[m - 1]`, where given, lengthens a layer of m slices once more: compute flat in m, as on a GPU.
    """

    compute: float = 1.0
    io: float = 1.0
    by_width: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 < factor < float("inf") for factor in (self.compute, self.io, *self.by_width)):
            raise ProfileError(
                f"a device takes a positive number of times as long, not {self.compute}, {self.io}, "
                f"{self.by_width}."
            )

    def factor(self, work: Work) -> float:
        """How many times longer `work` takes; exchanges take what the network takes."""
        match work:
            case Compute():
                return self.compute * (self.by_width[work.width - 1] if work.width and self.by_width else 1.0)
            case Load():
                return self.io
            case Exchange():
                return 1.0
            case _:
                assert_never(work)

    def at_width(self, width: int) -> "Dilation":
        """Of a run whose layers have `width` slices: all that it computes takes as many times as they do."""
        return Dilation(self.compute * (self.by_width[width - 1] if self.by_width else 1.0), self.io)

    def times(self, other: "Dilation") -> "Dilation":
        """Of a device that takes `other` times as long as one of this; the latter `by_width` counts."""
        return Dilation(self.compute * other.compute, self.io * other.io, other.by_width or self.by_width)

    def covers(self, other: "Dilation") -> bool:
        """Whether a plan that keeps its target under this keeps it under `other` as well."""
        return self.compute >= other.compute and self.io >= other.io


def emulated(dilation: Dilation) -> Dilation:
    """`dilation`, which a machine emulates by waiting. Raises ProfileError for less than once as long."""
    if min(dilation.compute, dilation.io, *dilation.by_width) < 1:
        raise ProfileError(
            f"a device can only be dilated, not sped up: {dilation.compute}, {dilation.io}, "
            f"{dilation.by_width}. Give factors of 1 or more."
        )
    return dilation


def compute_alone(dilation: Dilation, what: str) -> Dilation:
    """`dilation` of what reads nothing while it runs. Raises InputError, naming it, for slower reads."""
    if dilation != Dilation(dilation.compute):
        raise InputError(
            f"{what} reads nothing while it runs: its dilation is of `compute` alone, not {dilation}."
        )
    return dilation
