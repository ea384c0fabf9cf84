"""Place the reads of a program in the working buffer."""

from collections.abc import Mapping

from pliant.ir.program import Load, Program
from pliant.store.read import ReadExtent, Store

ReadPlacement = tuple[tuple[ReadExtent, int], ...]
"""The reads of one load, each with its offset in the working buffer."""


def place_reads(program: Program, n_slots: int, store: Store) -> Mapping[Load, ReadPlacement]:
    """Each load's reads and their offsets; layers use the slots of a ring in turn."""
    loads = [step.work for step in program.steps if isinstance(step.work, Load)]
    layers = list(dict.fromkeys(load.layer for load in loads))
    reads = {load: store.plan_reads(load.runs) for load in loads}
    sizes = {layer: sum(e.n_bytes for w in loads if w.layer == layer for e in reads[w]) for layer in layers}
    slot = max(sizes.values(), default=0)
    n_slots = max(1, min(n_slots, len(layers)))
    free = {layer: (i % n_slots) * slot for i, layer in enumerate(layers)}
    placed = {}
    for load in loads:
        spots = []
        for extent in reads[load]:
            spots.append((extent, free[load.layer]))
            free[load.layer] += extent.n_bytes
        placed[load] = tuple(spots)
    return placed
