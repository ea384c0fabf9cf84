"""The memory that a session on arrays adds to its process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.arena import Arena
from pliant.run.memory_use import MemoryUse, is_mapped, measure_part, scratch_part
from pliant.run.weight_sizes import GivenArrays, combined
from pliant.system import rss_bytes

if TYPE_CHECKING:
    from pliant.run.graph.graph_runner import GraphRunner


@dataclass(frozen=True, slots=True)
class SessionArrays:
    """The arrays of a session: of its images, its arena, its parallel runs, and weights as given."""

    runners: "Sequence[GraphRunner]"
    arena: Arena
    parallel: Sequence[np.ndarray]
    given: GivenArrays = GivenArrays()  # noqa: RUF009 - not written to

    @property
    def mapped(self) -> list[np.ndarray]:
        """The weights in mapped files, which do not count."""
        return [array for array in self._weights if is_mapped(array)]

    @property
    def own(self) -> list[np.ndarray]:
        """The weights in the form that kernels read, unless they are mapped or as given."""
        return [array for array in self._weights if array not in self.given and not is_mapped(array)]

    @property
    def n_bytes(self) -> int:
        """The bytes of all arrays that count."""
        every = (*self.own, *self.given.arrays, self.arena.memory, *self.parallel)
        return sum(array.nbytes for array in every)

    @property
    def _weights(self) -> list[np.ndarray]:
        held = (array for runner in self.runners for array in runner.weights.values())
        return list({array.ctypes.data: array for array in held}.values())


def array_memory(
    arrays: SessionArrays, pool: ThreadPool, budget_bytes: int | None, worker_bytes: int
) -> MemoryUse:
    """The memory of parallel runs is predicted to become at least `worker_bytes`."""
    runners, given, parallel, mapped = arrays.runners, arrays.given, arrays.parallel, arrays.mapped
    sizes = combined(runner.sizes for runner in runners)
    beside_bytes = max(sum(array.nbytes for array in parallel), worker_bytes)
    arena_bytes = max((runner.arena_bytes for runner in runners), default=0)
    return MemoryUse(
        budget_bytes,
        (
            measure_part("weights", sizes.form_bytes, arrays.own),
            *([measure_part("weights as given", sizes.given_bytes, given.arrays)] if sizes.given else ()),
            measure_part("activations", arena_bytes, [arrays.arena.memory]),
            *([measure_part("parallel runs", beside_bytes, parallel)] if beside_bytes else ()),
        ),
        (
            measure_part("weights in mapped files", sum(a.nbytes for a in mapped), mapped),
            scratch_part(pool),
        ),
        rss_bytes(),
    )
