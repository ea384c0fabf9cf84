"""Place tensors with lifetimes in one block of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.ir.executable import ALIGNMENT
from pliant.ir.symbolic import plain_value


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor of `n_bytes` that is alive from step `first` to step `last`, inclusive."""

    n_bytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if plain_value(self.n_bytes) < 0 or self.first > self.last:
            raise ValueError(f"no tensor has {self.n_bytes} bytes from step {self.first} to {self.last}.")

    def overlaps(self, other: "Lifetime") -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Placement:
    """Byte offsets of the tensors, in the order given, and the size of the block that holds them."""

    offsets: tuple[int, ...]
    n_bytes: int


def place_tensors(tensors: Sequence[Lifetime]) -> Placement:
    """Greedy by size, first fit by offset over lifetimes (FluidML, Algorithm 4).

    Tensors alive together never share a byte; every offset is a multiple of ALIGNMENT. Symbolic sizes are
    placed with their current values.
    """
    sizes = [plain_value(t.n_bytes) for t in tensors]
    offsets: dict[int, int] = {}
    for i in sorted(range(len(tensors)), key=lambda i: (-sizes[i], i)):
        rivals = sorted((offsets[j], sizes[j]) for j in offsets if tensors[i].overlaps(tensors[j]))
        offset = 0
        for start, n_bytes in rivals:
            if offset + sizes[i] <= start:
                break
            offset = max(offset, -(-(start + n_bytes) // ALIGNMENT) * ALIGNMENT)
        offsets[i] = offset
    end = max((offsets[i] + sizes[i] for i in offsets), default=0)
    return Placement(tuple(offsets[i] for i in range(len(tensors))), end)
