"""Stages: the steps of a session on arrays, which read and make tensors by name."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final, runtime_checkable

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.binding import BoundProgram
from pliant.compiler.executable.encode_image import CallEntry, EncodedProgram, encode, image_kernels
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.ir.executable import ARENA
from pliant.ir.graph import TensorType
from pliant.ir.port import static_port
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.call_table import CallTable
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.arena import Arena
from pliant.run.session.feeds import FeedsLike, convert_feeds
from pliant.run.session.ports import Feeds, check_writable, shapes_of

if TYPE_CHECKING:
    from pliant.run.batches.packed_texts import PackedTexts

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
Tensors = dict[str, Any]
"""Arrays by name; between numpy steps also lists of arrays (ONNX sequences) and None (absent optional
values).
"""
AllTensors = Mapping[str, Any]


@runtime_checkable
class ArrayStage(Protocol):
    """The implementation of a `Compute` step of a session on arrays; the step's kernel name refers to it.

    It is called with the tensors made so far, by their names in the whole program, and returns the tensors
    that it makes. Input shapes may be known only when it is called: a stage with data-dependent shapes then
    compiles or looks up an executable for them. A numpy stage has no kernel calls.
    """

    @property
    def inputs(self) -> Sequence[str]:
        """The tensors it reads."""

    @property
    def outputs(self) -> Sequence[str]:
        """The tensors it makes."""

    @property
    def rows(self) -> Sequence[CallEntry]:
        """Its kernel calls in order; those of the latest run if they depend on shapes."""

    @property
    def weights(self) -> Feeds:
        """Its model weights by name, in the form that kernels read."""

    @property
    def arena_bytes(self) -> int:
        """The bytes of arena that it needs."""

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch that it needs on each thread."""

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        """Its outputs; those of `out` are written into the arrays given there. Raises InputError."""

    def walk_timed(self, tensors: AllTensors) -> tuple[Tensors, Float64[np.ndarray, " ends"]]:
        """As `walk`; seconds from the start to the first of its kernel calls, which is 0, and to the end of
        each."""

    def copy_for(self, pool: ThreadPool, arena: Arena) -> "ArrayStage":
        """A copy in another arena, for a pool that runs it concurrently."""


@final
class ExecutableStage:
    """An executable bound to its weights, an arena and the addresses of its kernels: one native call.

    The pool may be shared with other stages and is left open. The arena is allocated once here, unless a
    shared one is given, whose owner serialises runs. A forked child may use the stage, on workers of its own.
    With `texts`, its input tensors mark their padding.
    """

    def __init__(
        self,
        program: EncodedProgram,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        pool: ThreadPool,
        arena: Arena | None = None,
        texts: "PackedTexts | None" = None,
    ) -> None:
        self._texts = texts
        self.program, self.weights, self.rows = program, weights, program.rows
        self.input_types, self.output_types = program.inputs, program.outputs
        self.inputs, self.outputs = tuple(program.inputs), tuple(program.outputs)
        self._ports = tuple(static_port(x, t) for x, t in program.inputs.items())
        self._pool, self._addresses = pool, addresses
        pool.reserve(program.scratch_bytes)
        self._arena = Arena() if arena is None else arena
        self._bound = BoundProgram(program, addresses)
        for space, array in weights.items():
            self._bound.point(space, Buffer.of(array))
        self._fixed, self._arena_at = {*weights, ARENA}, 0
        self._place_arena()

    @property
    def arena(self) -> np.ndarray:
        """The arena's memory, for measurement."""
        return self._arena.memory

    @property
    def arena_bytes(self) -> int:
        return self.program.arena_bytes

    @property
    def scratch_bytes(self) -> int:
        return self.program.scratch_bytes

    def run(self, feeds: FeedsLike, out: Feeds | None = None) -> Arrays:
        """As `walk`, after checking and converting the feeds."""
        arrays = convert_feeds(self._ports, feeds)
        shapes_of(self._ports, arrays)
        return self.walk(arrays, out)

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Arrays:
        """Its outputs; those of `out` are written into the arrays given there. Raises InputError."""
        return self._run(tensors, out, self._pool.walk)[0]

    def walk_timed(self, tensors: AllTensors) -> tuple[Arrays, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time of each kernel call."""
        return self._run(tensors, None, self._pool.walk_timed)

    def copy_for(self, pool: ThreadPool, arena: Arena) -> "ExecutableStage":
        """A copy in another arena, for a pool that runs it concurrently."""
        return ExecutableStage(self.program, self.weights, self._addresses, pool, arena, self._texts)

    def last_binding(self) -> tuple[BoundProgram, Container[str], Callable[[CallTable], None]]:
        """The bound program of the last walk, its fixed spaces, and the function that walks it."""
        return self._bound, self._fixed, self._pool.walk

    def repeat(self) -> None:
        """Run again on the arrays of the last run, which the caller must keep alive; used for timing."""
        self._pool.walk(self._bound.table)

    def _run(
        self, tensors: AllTensors, out: Feeds | None, walk: Callable[[CallTable], T]
    ) -> tuple[Arrays, T]:
        self._place_arena()
        if self._texts is not None:
            tensors, n_rows, shares = self._texts.pack(tensors)
            self._bound.cut(n_rows, shares)
        return run_bound(self._bound, self.inputs, self.output_types, self._fixed, tensors, out, walk)

    def _place_arena(self) -> None:
        """Grow the arena if needed, and update its address in the calls."""
        self._arena.hold(self.program.arena_bytes)
        if self._arena.buffer.address != self._arena_at:
            self._bound.lend(ARENA, self._arena.memory)
            self._arena_at = self._arena.buffer.address


def run_bound(
    bound: BoundProgram,
    inputs: Sequence[str],
    outputs: Mapping[str, TensorType],
    fixed: Container[str],
    tensors: AllTensors,
    out: Feeds | None,
    walk: Callable[[CallTable], T],
) -> tuple[Arrays, T]:
    """Walk a program after binding its inputs and outputs; returns its outputs and the result of `walk`.

    `fixed` are the spaces that are already bound, such as constants. Outputs of `out` are written into the
    arrays given there. Raises InputError.
    """
    held = {x: np.ascontiguousarray(tensors[x]) for x in inputs}
    for x, array in held.items():
        bound.lend(x, array)
    results = {}
    for y, type_ in outputs.items():
        given = None if out is None else out.get(y)
        result = np.empty(type_.shape, type_.numpy) if given is None else check_writable(y, given, type_)
        results[y] = result
        if y not in held and y not in fixed:  # outputs that are inputs or constants are copied
            bound.lend(y, result)
    found = walk(bound.table)
    bound.check()
    bound.copy(results)
    return results, found


def open_image(image: Image, pool: ThreadPool, library: Library) -> ExecutableStage:
    """A stage of an image for itself; weights are packed here."""
    weights = {x: np.ascontiguousarray(a) for x, a in image.constants.items()}
    for name, packed in image.packed.items():
        weights[name] = aligned_bytes(packed.n_bytes)
        packed.fill(weights[name])
    return ExecutableStage(encode(image), weights, load_kernels(image_kernels(image), library), pool)
