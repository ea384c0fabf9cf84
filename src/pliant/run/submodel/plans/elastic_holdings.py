"""The possible holdings of an elastic session in a shared budget, and the time that answers then read
weights.
"""

from dataclasses import replace

from pliant.plan.memory_shares import MemoryOption
from pliant.run.submodel.plans.memory_split import MemoryOverhead, least_weight_bytes
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner

_STEP, _N_STEPS = 2 ** (1 / 4), 24
"""The factor between sizes of the preload buffer, which go down to 1/64 of all weights."""


def holdings_of(
    planner: SubmodelPlanner, options: SessionOptions, overhead: MemoryOverhead
) -> tuple[MemoryOption, ...]:
    """Holdings from the least memory under which a session meets its target to room for all weights at the
    most bits. Each includes activations and the weights that every plan needs.

    The seconds are the time to read the other weights, if all memory beyond the least is preloaded. Answers
    read them during computation, or skip some of them to be in time; answers that skip fewer are more
    accurate.

    Raises BudgetError if no plan meets the target.
    """
    asked = replace(options, preload_bytes=None, working_bytes=None, layer_bytes=None, memory_bytes=None)
    least = overhead.total_bytes + least_weight_bytes(planner, asked)
    shape = planner.shape
    most = shape.most_bytes
    preloads = sorted({0, *(int(most / _STEP**i) for i in range(_N_STEPS + 1))})
    byte_s = planner.profile.dilation.io / planner.profile.disk.bandwidth_Bps
    return tuple(MemoryOption(least + preload, (most - preload) * byte_s) for preload in preloads)
