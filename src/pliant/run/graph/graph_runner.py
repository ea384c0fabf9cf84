"""A compiled graph bound to memory: a run is one native call."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np

from pliant.compiler.executable.assemble_image import ARENA, Image
from pliant.compiler.executable.binding import Bound
from pliant.compiler.executable.encode_image import Encoded, encode, kernels
from pliant.compiler.executable.kernel_addresses import addresses
from pliant.ir.port import static_port
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import Pool
from pliant.run.arena import Arena
from pliant.run.session.feeds import GivenFeeds, fed_arrays
from pliant.run.session.ports import Feeds, shapes_of, writable
from pliant.run.weight_sizes import NO_WEIGHTS, WeightSizes

if TYPE_CHECKING:
    from pliant.run.graph.schedule_graph import ScheduleReport
    from pliant.run.session.call_profile import Profile


@final
class GraphRunner:
    """Runs one program on its weights and the addresses of its kernels. Its owner lets runs take turns.

    The pool may be shared with other runners and is left open. The arena is allocated here and never again,
    unless one is given that programs share. A forked child may use the runner, on workers of its own.
    `schedule` tells how layouts were chosen, None where that went by rule or is unknown; `measured_s` is the
    median time of a run when it was last profiled. `sizes` are the bytes of its weights as predicted.
    """

    def __init__(
        self,
        program: Encoded,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        pool: Pool,
        arena: Arena | None = None,
        schedule: "ScheduleReport | None" = None,
        sizes: WeightSizes = NO_WEIGHTS,
    ) -> None:
        self.program, self.weights, self.sizes = program, weights, sizes
        self.inputs = tuple(static_port(x, t) for x, t in program.inputs.items())
        self.outputs = tuple(static_port(y, t) for y, t in program.outputs.items())
        self.schedule = schedule
        self.measured_s: float | None = None
        self._pool, self._addresses = pool, addresses
        pool.reserve(program.scratch_bytes)
        self._arena = Arena() if arena is None else arena
        self._bound = Bound(program, addresses)
        self._table = self._bound.table
        self._fixed = {x: a.ctypes.data for x, a in weights.items()}
        for space, address in self._fixed.items():
            self._bound.point(space, address)
        self._place_arena()

    @property
    def arena(self) -> np.ndarray:
        """The arena's memory, to be measured."""
        return self._arena.memory

    @property
    def arena_bytes(self) -> int:
        return self.program.arena_bytes

    def run(self, feeds: GivenFeeds, out: Feeds | None = None) -> dict[str, np.ndarray]:
        """Outputs by name; those of `out` are written into the arrays given there. Raises InputError."""
        arrays = fed_arrays(self.inputs, feeds)
        shapes_of(self.inputs, arrays)
        return self.walk(arrays, out)

    def walk(self, feeds: Feeds, out: Feeds | None) -> dict[str, np.ndarray]:
        """A run on feeds that were checked: they have the types and shapes of `inputs`."""
        self._place_arena()
        held = {}
        for x in self.program.inputs:
            held[x] = np.ascontiguousarray(feeds[x])
            self._bound.point(x, held[x].ctypes.data)
        results = {}
        for y, type_ in self.program.outputs.items():
            given = None if out is None else out.get(y)
            results[y] = np.empty(type_.shape, type_.numpy) if given is None else writable(y, given, type_)
            if y not in held and y not in self._fixed:  # what is also an input or a constant is copied
                self._bound.point(y, results[y].ctypes.data)
        if len(self._table):
            self._pool.walk(self._table)
            self._bound.check()
        self._bound.copy({y: a.ctypes.data for y, a in results.items()})
        return results

    def beside(self, pool: Pool, arena: Arena) -> "GraphRunner":
        """The same program in another arena, for a pool that walks it at the same time."""
        return GraphRunner(self.program, self.weights, self._addresses, pool, arena)

    def repeat(self) -> None:
        """Run once more on the arrays of the last run, which the caller still holds: what is timed."""
        self._pool.walk(self._table)

    def profile(self, feeds: Feeds, runs: int) -> "Profile":
        """Where the time of a run goes, over `runs` runs after one that is not counted; feeds as `walk`'s."""
        from pliant.run.session.call_profile import profile_of  # draws tables, which no run needs

        held = self.walk(feeds, None)
        ends_s = np.stack([self._pool.walk_timed(self._table) for _ in range(runs)])
        del held
        found = profile_of(self.program.rows, ends_s, self._pool.n_threads)
        self.measured_s = found.median_s
        return found

    def _place_arena(self) -> None:
        """Point the calls at the arena where it is now, large enough for them."""
        if self._arena.n_bytes < self.program.arena_bytes:
            self._arena.resize(self.program.arena_bytes)
        if self._arena.address != self._fixed.get(ARENA):
            self._bound.point(ARENA, self._arena.address)
            self._fixed[ARENA] = self._arena.address


def open_image(image: Image, pool: Pool, library: Library) -> GraphRunner:
    """A runner of an image that nothing else runs; weights are packed here."""
    weights = {x: np.ascontiguousarray(a) for x, a in image.constants.items()}
    for name, packed in image.packed.items():
        weights[name] = aligned_bytes(packed.n_bytes)
        packed.fill(weights[name])
    return GraphRunner(encode(image), weights, addresses(kernels(image), library), pool)
