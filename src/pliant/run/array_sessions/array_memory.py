"""The memory that a session on arrays adds to its process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.arena import Arena
from pliant.run.memory_use import MemoryUse, is_mapped, measure_part, scratch_part
from pliant.run.weight_sizes import GivenArrays, combined
from pliant.system import rss_bytes

if TYPE_CHECKING:
    from pliant.run.graph.graph_runner import GraphRunner


def array_memory(
    runners: "Sequence[GraphRunner]",
    pool: ThreadPool,
    budget_bytes: int | None,
    arena: Arena,
    parallel: Sequence[np.ndarray],
    parallel_bytes: int = 0,
    given: GivenArrays = GivenArrays(),  # noqa: B008 - not written to
) -> MemoryUse:
    """`parallel` is the memory of parallel runs, which is predicted to become at least `parallel_bytes`;
    `given` are the bits of weights that were given.
    """
    sizes = combined(runner.sizes for runner in runners)
    held = [array for runner in runners for array in runner.weights.values()]
    mapped = {array.ctypes.data: array for array in held if is_mapped(array)}
    own = [array for array in held if array.ctypes.data not in mapped and array not in given]
    beside_bytes = max(sum(array.nbytes for array in parallel), parallel_bytes)
    arena_bytes = max((runner.arena_bytes for runner in runners), default=0)
    return MemoryUse(
        budget_bytes,
        (
            measure_part("weights", sizes.form_bytes, own),
            *([measure_part("weights as given", sizes.given_bytes, given.arrays)] if sizes.given else ()),
            measure_part("activations", arena_bytes, [arena.memory]),
            *([measure_part("parallel runs", beside_bytes, parallel)] if beside_bytes else ()),
        ),
        (
            measure_part("weights in mapped files", sum(a.nbytes for a in mapped.values()), mapped.values()),
            scratch_part(pool),
        ),
        rss_bytes(),
    )
