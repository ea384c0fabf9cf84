"""The order of shards in a layer's file: shards that are read together are adjacent."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pliant.ir.bitwidths import PLANES
from pliant.ir.program import FULL
from pliant.store.container import BLOCK

ALL_PARTS = tuple(range(FULL + 1))
BASE_PLANES = 2  # no plan runs a shard with fewer, so these are always read together


@dataclass(frozen=True, slots=True)
class Cell:
    """Adjacent slices of one part: `first` .. `first + count - 1`."""

    part: int
    first: int
    count: int


@cache
def file_order(
    n_slices: int, widths: tuple[int, ...], parts: tuple[int, ...] = ALL_PARTS
) -> tuple[Cell, ...]:
    """All cells of a layer, in the order of its file; those of other parts than `parts` come last.

    The trained widths divide the slices into tiers. First come the planes of the narrowest tier, the last
    plane first; then the base planes of the other tiers, tier by tier; then their planes 2, 3, 4, 5, the even
    ones from the last tier down and the odd ones from the first up; then full fidelity. So one read brings in
    the narrowest width at any number of bits, the whole width at any, and the base planes of any width; a
    further plane is one read of the narrowest width and at most two of any other.
    """
    edges = sorted({0, n_slices, *(w for w in widths if w < n_slices)})
    tiers = [(a, b - a) for a, b in pairwise(edges)]
    narrow, others = tiers[0], tiers[1:]
    cells = [Cell(q, *narrow) for q in reversed(range(PLANES))]
    cells += [Cell(q, *tier) for tier in others for q in range(BASE_PLANES)]
    for q in range(BASE_PLANES, PLANES):
        cells += [Cell(q, *tier) for tier in (others if q % 2 else reversed(others))]
    cells.append(Cell(FULL, 0, n_slices))
    return tuple(sorted(cells, key=lambda cell: cell.part not in parts))


@cache
def file_places(
    n_slices: int, widths: tuple[int, ...], parts: tuple[int, ...] = ALL_PARTS
) -> tuple[tuple[int, ...], ...]:
    """[part][slice]: the number of slices of parts before it in the file. Neighbours are one read."""
    places = [[0] * n_slices for _ in range(PLANES + 1)]
    at = 0
    for cell in file_order(n_slices, widths, parts):
        for s in range(cell.first, cell.first + cell.count):
            places[cell.part][s] = at
            at += 1
    return tuple(map(tuple, places))


@cache
def file_offsets(
    n_slices: int,
    widths: tuple[int, ...],
    plane_bytes: int,
    full_bytes: int,
    parts: tuple[int, ...] = ALL_PARTS,
) -> tuple[tuple[int, ...], ...]:
    """[part][slice]: its start byte, counted from the first tensor; every cell begins on a block."""
    offsets = [[0] * n_slices for _ in range(PLANES + 1)]
    at = 0
    for cell in file_order(n_slices, widths, parts):
        size = full_bytes if cell.part == FULL else plane_bytes
        for s in range(cell.first, cell.first + cell.count):
            offsets[cell.part][s] = at
            at += size
        at += -at % BLOCK
    return tuple(map(tuple, offsets))


def block_bytes(spans: Iterable[tuple[int, int]]) -> int:
    """Bytes of all blocks that the spans (first byte, end) touch: the memory that reads of them need."""
    total = end = 0
    for start, stop in sorted(spans):
        stop += -stop % BLOCK
        total += max(0, stop - max(start - start % BLOCK, end))
        end = max(end, stop)
    return total


@cache
def file_tiers(
    n_slices: int, widths: tuple[int, ...], parts: tuple[int, ...] = ALL_PARTS
) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """[part]: its cells as (first slice, a mask of its length, place of its first slice)."""
    places = file_places(n_slices, widths, parts)
    tiers: list[list[tuple[int, int, int]]] = [[] for _ in range(PLANES + 1)]
    for cell in file_order(n_slices, widths, parts):
        tiers[cell.part].append((cell.first, (1 << cell.count) - 1, places[cell.part][cell.first]))
    return tuple(map(tuple, tiers))


def count_runs(places: Iterable[int]) -> int:
    """The number of runs of adjacent `places`."""
    mask = 0
    for place in places:
        mask |= 1 << place
    return (mask & ~(mask << 1)).bit_count()
