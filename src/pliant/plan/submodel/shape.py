"""The sizes of a store, as a planner needs them."""

from dataclasses import dataclass

from pliant.errors import BudgetError
from pliant.ir.bitwidths import BITS, FULL_BITS, LOWEST_BITS, PLANES
from pliant.ir.program import FULL
from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import ModelSpec
from pliant.store.coding.shard_order import file_offsets, file_places, file_tiers


@dataclass(frozen=True, slots=True)
class StoreShape:
    """N layers x M slices, trained widths and depths, and the bytes of a slice's plane and full fidelity.

    The store holds the first `planes` planes of every shard, and full fidelity if `has_full`.
    """

    n_layers: int
    n_slices: int
    widths: tuple[int, ...]
    plane_bytes: int
    full_bytes: int
    depths: tuple[int, ...]
    planes: int = PLANES
    has_full: bool = True

    def __post_init__(self) -> None:
        if min(self.n_layers, self.n_slices, self.plane_bytes, self.full_bytes) < 1:
            raise BudgetError(f"a store has layers, slices and bytes, not {self}.")
        if not self.widths or not all(1 <= w <= self.n_slices for w in self.widths):
            raise BudgetError(f"widths {self.widths} must lie within 1..{self.n_slices}.")
        if not self.depths or not all(1 <= n <= self.n_layers for n in self.depths):
            raise BudgetError(f"depths {self.depths} must lie within 1..{self.n_layers}.")
        if not LOWEST_BITS <= self.planes <= PLANES:
            raise BudgetError(f"plans need {LOWEST_BITS}..{PLANES} planes of every shard, not {self.planes}.")

    @property
    def bits(self) -> tuple[int, ...]:
        """The bits that a shard can run with, ascending."""
        return (*range(LOWEST_BITS, self.planes + 1), *((FULL_BITS,) if self.has_full else ()))

    @property
    def most_bytes(self) -> int:
        """The bytes of all shards at the most bits."""
        return self.n_layers * self.n_slices * self.shard_bytes(self.bits[-1])

    def shard_bytes(self, bits: int) -> int:
        """Return the bytes of one complete shard at `bits`."""
        return self.full_bytes if bits == FULL_BITS else bits * self.plane_bytes

    def part_bytes(self, part: int) -> int:
        """Return the bytes of one slice of a part: a plane or, for the last one, full fidelity."""
        return self.full_bytes if part == FULL else self.plane_bytes

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """[part][slice]: its position in the order of a layer's file; neighbours are one read."""
        return file_places(self.n_slices, self.widths, self._parts)

    @property
    def tiers(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """[part]: its cells as (first slice, a mask of its length, position of its first slice)."""
        return file_tiers(self.n_slices, self.widths, self._parts)

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """[part][slice]: its start in a layer's file, in bytes from the first tensor."""
        sizes = self.plane_bytes, self.full_bytes
        return file_offsets(self.n_slices, self.widths, *sizes, self._parts)

    @property
    def _parts(self) -> tuple[int, ...]:
        return (*range(self.planes), *((FULL,) if self.has_full else ()))


def store_shape(spec: ModelSpec, bits: tuple[int, ...] = BITS) -> StoreShape:
    """Return the shape of a store of `spec` that offers `bits`."""
    geometry = slice_geometry(spec)
    return StoreShape(
        n_layers=spec.n_layers,
        n_slices=spec.n_heads,
        widths=spec.widths,
        plane_bytes=geometry.plane_bytes,
        full_bytes=geometry.full_bytes(spec.precision),
        depths=spec.trained_depths,
        planes=max(b for b in bits if b <= PLANES),
        has_full=FULL_BITS in bits,
    )
