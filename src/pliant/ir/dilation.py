"""The factor by which a device is slower than its measured costs."""

from dataclasses import dataclass
from typing import assert_never

from pliant.errors import InputError, ProfileError
from pliant.ir.program import Compute, Exchange, Load, Work


@dataclass(frozen=True, slots=True)
class Dilation:
    """The slow-down of a device relative to measurements, for computation (`compute`) and reads (`io`).

    For an emulated device the factors are set, and at least 1. For a plan they follow the latest answers, and
    are below 1 for work that has become faster. `compute` covers all work of the processor: layers,
    embedding, head, tokenising, and the Python between them; `io` covers reads, including their latency.
    `by_width[m - 1]`, if given, is a further factor for a layer of m slices, e.g. for compute that is flat in
    m, as on a GPU.
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
        """Return the factor of `work`; exchanges take the network's time, unchanged."""
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
        """The dilation of a run whose layers have `width` slices: their factor applies to all compute."""
        return Dilation(self.compute * (self.by_width[width - 1] if self.by_width else 1.0), self.io)

    def times(self, other: "Dilation") -> "Dilation":
        """The dilation of a device `other` times slower than this one; `other.by_width` takes precedence."""
        return Dilation(self.compute * other.compute, self.io * other.io, other.by_width or self.by_width)

    def covers(self, other: "Dilation") -> bool:
        """Return whether a plan that meets its target under this dilation also meets it under `other`."""
        return self.compute >= other.compute and self.io >= other.io


def require_emulable(dilation: Dilation) -> Dilation:
    """Return `dilation`, which a machine emulates by waiting. Raises ProfileError for factors below 1."""
    if min(dilation.compute, dilation.io, *dilation.by_width) < 1:
        raise ProfileError(
            f"a device can only be dilated, not sped up: {dilation.compute}, {dilation.io}, "
            f"{dilation.by_width}. Give factors of 1 or more."
        )
    return dilation


def require_compute_only(dilation: Dilation, what: str) -> Dilation:
    """Return `dilation` for work without reads. Raises InputError, naming it, if `io` is not 1."""
    if dilation != Dilation(dilation.compute):
        raise InputError(
            f"{what} reads nothing while it runs: its dilation is of `compute` alone, not {dilation}."
        )
    return dilation
