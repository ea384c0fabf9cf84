"""A compiled graph in memory: feeds in, arrays out, one native call between. Knows no operator or plan."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from pliant.compile.assemble import ARENA
from pliant.compile.bound import Bound
from pliant.compile.encode import Encoded, encode, kernels
from pliant.compile.image import Image
from pliant.compile.load import addresses
from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.kernels.jit import Library
from pliant.kernels.memory import aligned_bytes
from pliant.kernels.pool import Pool

if TYPE_CHECKING:
    from pliant.run.profile import Profile

Feeds = Mapping[str, np.ndarray]


@final
class CompiledSession:
    """Runs one program on its weights and the addresses of its kernels; threads take turns.

    The pool may be shared with other sessions and is left open. The arena is allocated here and never again.
    """

    def __init__(
        self, program: Encoded, weights: Mapping[str, np.ndarray], addresses: Mapping[str, int], pool: Pool
    ) -> None:
        self.program = program
        self._pool, self._weights = pool, weights
        self._lock = threading.Lock()
        pool.reserve(program.scratch_bytes)
        self._arena = aligned_bytes(program.arena_bytes)
        self._bound = Bound(program, addresses)
        self._table = self._bound.table
        self._fixed = {ARENA: self._arena.ctypes.data} | {x: a.ctypes.data for x, a in weights.items()}
        for space, address in self._fixed.items():
            self._bound.point(space, address)

    @property
    def arena_bytes(self) -> int:
        return self.program.arena_bytes

    def run(
        self, feeds: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, in fresh arrays or in those of `out`. Raises InputError naming a wrong feed."""
        self._check(feeds)
        with self._lock:
            return self._run(feeds, out)

    def repeat(self) -> None:
        """Run once more on the arrays of the last run, which the caller still holds: what is timed."""
        with self._lock:
            self._pool.walk(self._table)

    def profile(self, feeds: Feeds, runs: int = 20) -> "Profile":
        """Where the time of a run goes, step by step, over `runs` runs after one that is not counted."""
        from pliant.run.profile import profile_of  # draws tables, which no run needs

        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        self._check(feeds)
        with self._lock:
            held = self._run(feeds, None)
            ends_s = np.stack([self._pool.walk_timed(self._table) for _ in range(runs)])
            del held
        return profile_of(self.program.rows, ends_s, self._pool.n_threads)

    def _run(
        self, feeds: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        held = {}
        for x in self.program.inputs:
            held[x] = np.ascontiguousarray(feeds[x])
            self._bound.point(x, held[x].ctypes.data)
        results = {}
        for y, type_ in self.program.outputs.items():
            given = None if out is None else out.get(y)
            results[y] = np.empty(type_.shape, type_.numpy) if given is None else _writable(y, given, type_)
            if y not in held and y not in self._fixed:  # what is also an input or a constant is copied
                self._bound.point(y, results[y].ctypes.data)
        if len(self._table):
            self._pool.walk(self._table)
        self._bound.copy({y: a.ctypes.data for y, a in results.items()})
        return results

    def _check(self, feeds: Mapping[str, np.ndarray]) -> None:
        inputs = self.program.inputs
        wrong = sorted(set(feeds) ^ set(inputs))
        if wrong:
            raise InputError(f"feeds {wrong} are missing or unknown; the inputs are {list(inputs)}.")
        for x, type_ in inputs.items():
            _check_fits(x, feeds[x], type_)


def open_image(image: Image, pool: Pool, library: Library) -> CompiledSession:
    """A session on an image that nothing else runs; weights are packed here."""
    weights = {x: np.ascontiguousarray(a) for x, a in image.constants.items()}
    for name, packed in image.packed.items():
        weights[name] = aligned_bytes(packed.n_bytes)
        packed.fill(weights[name])
    return CompiledSession(encode(image), weights, addresses(kernels(image), library), pool)


def _check_fits(name: str, array: Any, type_: TensorType) -> None:
    """Raises InputError that says what dtype and shape are and must be."""
    if not isinstance(array, np.ndarray | np.generic):
        raise InputError(f"{name!r} must be a numpy array, not {type(array).__name__}.")
    if array.dtype != type_.numpy or array.shape != type_.shape:
        raise InputError(f"{name!r} is {array.dtype}{list(array.shape)}, but must be {type_}.")


def _writable(name: str, array: np.ndarray, type_: TensorType) -> np.ndarray:
    """`array` if kernels can write an output straight into it. Raises InputError otherwise."""
    _check_fits(name, array, type_)
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"the array given for output {name!r} must be C-contiguous and writable.")
    return array
