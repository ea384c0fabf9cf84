"""What an elastic session may hold of a budget that models share, and what its answers then read."""

from dataclasses import replace

from pliant.plan.memory_shares import Holding
from pliant.run.submodel.grant import MemoryBesideWeights, least_weight_bytes
from pliant.run.submodel.planning import Planner, SessionOptions

_STEP, _N_STEPS = 2 ** (1 / 4), 24
"""From one size of the preload buffer to the next, down to a 64th of all weights at full fidelity."""


def holdings_of(
    planner: Planner, options: SessionOptions, beside: MemoryBesideWeights
) -> tuple[Holding, ...]:
    """From the least bound of memory under which a session of these options keeps its target to one with room
    for all weights at full fidelity; each beside its activations and what every plan needs.

    The seconds are those of reading the other weights, where all beyond the least is preloaded. Answers read
    them beside computing, or do without some of them to be in time: the fewer they miss, the better they are.
    Raises BudgetError where nothing keeps the target.
    """
    asked = replace(options, preload_bytes=None, working_bytes=None, layer_bytes=None, memory_bytes=None)
    least = beside.total_bytes + least_weight_bytes(planner, asked)
    shape = planner.shape
    most = shape.n_layers * shape.n_slices * shape.full_bytes
    preloads = sorted({0, *(int(most / _STEP**i) for i in range(_N_STEPS + 1))})
    byte_s = planner.profile.dilation.io / planner.profile.disk.bandwidth_Bps
    return tuple(Holding(least + preload, (most - preload) * byte_s) for preload in preloads)
