"""Executables for families of shapes: a new shape of a known family is bound, not compiled."""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.binding import BoundProgram, ProgramNumbers
from pliant.compiler.executable.encode_image import CallEntry, EncodedProgram
from pliant.compiler.executable.symbolic_program import SymbolicProgram
from pliant.errors import GraphError, InputError, KernelError, PliantError
from pliant.ir.executable import ARENA
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.call_table import CallTable
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_blocks import BoundPart
from pliant.models.onnx.bind.onnx_symbolic import SIZE_LIMITS, SymbolicGraph, open_sizes, symbolic_graph
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, Arrays, ExecutableStage, run_bound
from pliant.run.graph.lowering import LoweredGraph
from pliant.run.session.ports import Feeds, Shapes
from pliant.run.weight_sizes import WeightSizes

T = TypeVar("T")

_MOST_FORMS = 16
_MOST_FAMILIES, _FAILURE = 16, 4
"""A failure counts as several families, because it takes as much time."""


@final
class SymbolicForm:
    """One executable in memory, for all sizes of a family for which the compiler makes the same decisions.

    Runs of different sizes are serialised: the numbers that differ are written into one shared table. The
    arena is shared with other executables; it grows to the need of the largest run.
    """

    def __init__(
        self,
        graph: SymbolicGraph,
        lowered: LoweredGraph,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        pool: ThreadPool,
        arena: Arena,
    ) -> None:
        self.weights, self.addresses, self.weight_sizes = weights, addresses, lowered.sizes
        self.program = SymbolicProgram(lowered.image, graph.trace, graph.family.names)
        self.graph = graph
        self.pool, self._arena = pool, arena
        self._bound = BoundProgram(self.program.program, addresses)
        for space, array in weights.items():
            self._bound.point(space, Buffer.of(array))
        self._arena_at = 0
        self._numbers: ProgramNumbers | None = None

    def sizes(self, shapes: Shapes) -> tuple[int, ...] | None:
        """The open sizes of these shapes; None if this executable does not serve them."""
        sizes = self.graph.family.sizes(shapes)
        return sizes if sizes is not None and self.program.is_valid_for(sizes) else None

    def stage(self, sizes: tuple[int, ...]) -> "SizedStage":
        """The stage for shapes of these sizes."""
        numbers = self.program.numbers(sizes)
        made = {x: self.graph.made[x].at(sizes) for x in numbers.inputs if x in self.graph.made}
        return SizedStage(self, sizes, numbers, made)

    def run(
        self, stage: "SizedStage", tensors: AllTensors, out: Feeds | None, walk: Callable[[CallTable], T]
    ) -> tuple[Arrays, T]:
        """As `ExecutableStage.walk`, for the sizes of one of its stages; also returns the result of
        `walk`.
        """
        self._resize(stage)
        fixed = {**self.weights, **stage.made}
        return run_bound(self._bound, stage.inputs, stage.output_types, fixed, tensors, out, walk)

    def last_binding(
        self, stage: "SizedStage"
    ) -> tuple[BoundProgram, Container[str], Callable[[CallTable], None]]:
        """As `ExecutableStage.last_binding`, for the stage that ran last."""
        return self._bound, {**self.weights, **stage.made}, self.pool.walk

    def _resize(self, stage: "SizedStage") -> None:
        if stage.numbers is not self._numbers:
            self._numbers = None  # after an interrupt the table has no valid size
            self._bound.resize(stage.numbers)
            for x, array in stage.made.items():
                self._bound.lend(x, array)
            self.pool.reserve(stage.numbers.scratch_bytes)
            self._numbers = stage.numbers
        self._arena.hold(stage.arena_bytes)
        if self._arena.buffer.address != self._arena_at:
            self._bound.lend(ARENA, self._arena.memory)
            self._arena_at = self._arena.buffer.address


@final
class SizedStage:
    """An `ArrayStage`: a form's executable at one size. `made` are the constants that depend on the size."""

    def __init__(
        self, form: SymbolicForm, sizes: tuple[int, ...], numbers: ProgramNumbers, made: Feeds
    ) -> None:
        self.form, self.sizes, self.numbers, self.made = form, sizes, numbers, made
        self.input_types = {x: t for x, t in numbers.inputs.items() if x not in made}
        self.output_types = numbers.outputs
        self.inputs, self.outputs = tuple(self.input_types), tuple(self.output_types)
        self.arena_bytes, self.scratch_bytes = numbers.arena_bytes, numbers.scratch_bytes
        self._program: EncodedProgram | None = None

    @property
    def program(self) -> EncodedProgram:
        """The program as compiled for this size alone."""
        if self._program is None:  # `cached_property` has a lock, which a child forked meanwhile waits for
            whole = self.form.program.at(self.sizes)
            weights = (*whole.weights, *self.made)
            self._program = replace(whole, inputs=self.input_types, weights=weights)
        return self._program

    @property
    def weight_sizes(self) -> WeightSizes:
        """The bytes of its weights."""
        made: dict[Hashable, int] = {("made", x, id(a)): a.nbytes for x, a in self.made.items()}
        sizes = self.form.weight_sizes
        return WeightSizes({**sizes.forms, **made}, sizes.given)

    @property
    def rows(self) -> Sequence[CallEntry]:
        return self.program.rows

    @property
    def weights(self) -> Feeds:
        return {**self.form.weights, **self.made}

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Arrays:
        """Its outputs; those of `out` are written into the arrays given there. Raises InputError."""
        return self.form.run(self, tensors, out, self.form.pool.walk)[0]

    def walk_timed(self, tensors: AllTensors) -> tuple[Arrays, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time of each kernel call."""
        return self.form.run(self, tensors, None, self.form.pool.walk_timed)

    def last_binding(self) -> tuple[BoundProgram, Container[str], Callable[[CallTable], None]]:
        """As `ExecutableStage.last_binding`."""
        return self.form.last_binding(self)

    def copy_for(self, pool: ThreadPool, arena: Arena) -> ExecutableStage:
        """A copy in another arena, for a pool that runs it concurrently."""
        return ExecutableStage(self.program, self.weights, self.form.addresses, pool, arena)


@final
class SymbolicForms:
    """The forms of one model; a new form is made for shapes that no existing form serves."""

    def __init__(self) -> None:
        self.forms: list[SymbolicForm] = []
        self._graphs: list[SymbolicGraph] = []
        self._failures = 0

    def stage(self, shapes: Shapes) -> SizedStage | None:
        """The stage for these shapes on an existing form; None if no form serves them."""
        for form in self.forms:
            sizes = form.sizes(shapes)
            if sizes is not None:
                return form.stage(sizes)
        return None

    def serve(self, shapes: Shapes) -> bool:
        """Whether an existing form serves these shapes. Safe to call while another thread adds a form."""
        return any(form.sizes(shapes) is not None for form in self.forms)

    def open(
        self,
        shapes: Shapes,
        open_dims: Mapping[str, Sequence[str | None]],
        bind: Callable[[Shapes], BoundPart],
        form: Callable[[SymbolicGraph], SymbolicForm],
        ways: Sequence[Sequence[int]] = SIZE_LIMITS,
    ) -> SizedStage | None:
        """As `stage`, on a new form made by `form`; None if none can be made."""
        try:
            graph = self.graph(shapes, open_dims, bind, ways)
        except (GraphError, InputError):  # reported when fixed sizes are compiled
            return None
        if graph is None:
            return None
        try:
            made = form(graph)
        except KernelError:  # it may be of the moment, such as too little memory for the compiler
            self._failures += 1
            self._graphs = [] if self._failures * _FAILURE >= _MOST_FAMILIES else self._graphs
            return None
        except (PliantError, AttributeError, LookupError, TypeError, ValueError):
            # A rule does not support symbols: compile for fixed sizes instead.
            self._graphs, self._failures = [], _MOST_FAMILIES
            return None
        self.forms = [*self.forms[-_MOST_FORMS + 1 :], made]
        return self.stage(shapes)

    def graph(
        self,
        shapes: Shapes,
        open_dims: Mapping[str, Sequence[str | None]],
        bind: Callable[[Shapes], BoundPart],
        ways: Sequence[Sequence[int]] = SIZE_LIMITS,
    ) -> SymbolicGraph | None:
        """The graph of the family of these shapes; None if no family is found.

        `open_dims` names the dimensions of each input that may be open. `bind` returns the model's part for
        given shapes; finding a new family calls it a few times.
        """
        for graph in self._graphs:
            sizes = graph.family.sizes(shapes)
            if sizes is not None:
                return graph.at(sizes)
        if len(self._graphs) + self._failures * _FAILURE >= _MOST_FAMILIES:
            return None
        if not open_sizes(shapes, open_dims):
            return None
        found = symbolic_graph(shapes, open_dims, bind, ways)
        if found is None:
            self._failures += 1
        else:
            self._graphs.append(found)
        return found
