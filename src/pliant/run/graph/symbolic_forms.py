"""Executables for families of shapes: a new shape of one is bound, not compiled."""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.binding import Bound, ProgramNumbers
from pliant.compiler.executable.encode_image import Encoded, Row
from pliant.compiler.executable.symbolic_program import SymbolicProgram
from pliant.errors import GraphError, InputError, PliantError
from pliant.ir.executable import ARENA
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.call_table import Table
from pliant.kernels.runtime.thread_pool import Pool
from pliant.models.onnx.bind.onnx_blocks import Part
from pliant.models.onnx.bind.onnx_symbolic import WAYS, SymbolicGraph, open_sizes, symbolic_graph
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, Arrays, ExecutableStage, run_bound
from pliant.run.graph.lowering import Lowered
from pliant.run.session.ports import Feeds, Shapes
from pliant.run.weight_sizes import WeightSizes

T = TypeVar("T")

_MOST_FORMS = 16
_MOST_FAMILIES, _FAILURE = 16, 4
"""A failure takes as much time as several families that are found."""


@final
class SymbolicForm:
    """One executable in memory, for all sizes of a family for which the compiler decides alike.

    Runs of different sizes take turns: what differs is written into the one table. The arena is shared with
    other executables; it grows to what the largest run needs.
    """

    def __init__(
        self,
        graph: SymbolicGraph,
        lowered: Lowered,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        pool: Pool,
        arena: Arena,
    ) -> None:
        self.weights, self.addresses, self.weight_sizes = weights, addresses, lowered.sizes
        self.program = SymbolicProgram(lowered.image, graph.trace, graph.family.names)
        self.graph = graph
        self.pool, self._arena = pool, arena
        self._bound = Bound(self.program.program, addresses)
        for space, array in weights.items():
            self._bound.point(space, Buffer.of(array))
        self._arena_at = 0
        self._numbers: ProgramNumbers | None = None

    def sizes(self, shapes: Shapes) -> tuple[int, ...] | None:
        """The open sizes of these shapes; None where they do not take this executable."""
        sizes = self.graph.family.sizes(shapes)
        return sizes if sizes is not None and self.program.holds(sizes) else None

    def stage(self, sizes: tuple[int, ...]) -> "SizedStage":
        """What runs shapes of these sizes."""
        numbers = self.program.numbers(sizes)
        made = {x: self.graph.made[x].at(sizes) for x in numbers.inputs if x in self.graph.made}
        return SizedStage(self, sizes, numbers, made)

    def run(
        self, stage: "SizedStage", tensors: AllTensors, out: Feeds | None, walk: Callable[[Table], T]
    ) -> tuple[Arrays, T]:
        """As `ExecutableStage.walk`, for the sizes of one of its stages; and what `walk` gives."""
        self._resize(stage)
        fixed = {**self.weights, **stage.made}
        return run_bound(self._bound, stage.inputs, stage.output_types, fixed, tensors, out, walk)

    def repeated(self, stage: "SizedStage") -> tuple[Bound, Container[str], Callable[[Table], None]]:
        """As `ExecutableStage.repeated`, for a stage that was walked last."""
        return self._bound, {**self.weights, **stage.made}, self.pool.walk

    def _resize(self, stage: "SizedStage") -> None:
        if stage.numbers is not self._numbers:
            self._numbers = None  # an interrupt on the way leaves it of no size
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
    """An `ArrayStage`: a form's executable at one size. `made` are the constants that follow from it."""

    def __init__(
        self, form: SymbolicForm, sizes: tuple[int, ...], numbers: ProgramNumbers, made: Feeds
    ) -> None:
        self.form, self.sizes, self.numbers, self.made = form, sizes, numbers, made
        self.input_types = {x: t for x, t in numbers.inputs.items() if x not in made}
        self.output_types = numbers.outputs
        self.inputs, self.outputs = tuple(self.input_types), tuple(self.output_types)
        self.arena_bytes = numbers.arena_bytes

    @cached_property
    def program(self) -> Encoded:
        """As it would be compiled for this size alone."""
        whole = self.form.program.at(self.sizes)
        return replace(whole, inputs=self.input_types, weights=(*whole.weights, *self.made))

    @property
    def weight_sizes(self) -> WeightSizes:
        """What its weights take."""
        made: dict[Hashable, int] = {("made", x, id(a)): a.nbytes for x, a in self.made.items()}
        sizes = self.form.weight_sizes
        return WeightSizes({**sizes.forms, **made}, sizes.given)

    @property
    def rows(self) -> Sequence[Row]:
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

    def repeated(self) -> tuple[Bound, Container[str], Callable[[Table], None]]:
        """As `ExecutableStage.repeated`."""
        return self.form.repeated(self)

    def beside(self, pool: Pool, arena: Arena) -> ExecutableStage:
        """The same in another arena, for a pool that walks it at the same time."""
        return ExecutableStage(self.program, self.weights, self.form.addresses, pool, arena)


@final
class SymbolicForms:
    """The forms of one model, made when shapes are met that none of them takes."""

    def __init__(self) -> None:
        self.forms: list[SymbolicForm] = []
        self._graphs: list[SymbolicGraph] = []
        self._failures = 0

    def stage(self, shapes: Shapes) -> SizedStage | None:
        """What runs these shapes on the form that takes them, if there is one."""
        for form in self.forms:
            sizes = form.sizes(shapes)
            if sizes is not None:
                return form.stage(sizes)
        return None

    def open(
        self,
        shapes: Shapes,
        open_dims: Mapping[str, Sequence[str | None]],
        bind: Callable[[Shapes], Part],
        form: Callable[[SymbolicGraph], SymbolicForm],
        ways: Sequence[Sequence[int]] = WAYS,
    ) -> SizedStage | None:
        """As `stage`, on a form that `form` makes now; None where none can be made."""
        try:
            graph = self.graph(shapes, open_dims, bind, ways)
        except (GraphError, InputError):  # told when numbers are compiled
            return None
        if graph is None:
            return None
        try:
            made = form(graph)
        except (PliantError, AttributeError, LookupError, TypeError, ValueError):
            # A rule cannot do with symbols: numbers are compiled instead.
            self._graphs, self._failures = [], _MOST_FAMILIES
            return None
        self.forms = [*self.forms[-_MOST_FORMS + 1 :], made]
        return self.stage(shapes)

    def graph(
        self,
        shapes: Shapes,
        open_dims: Mapping[str, Sequence[str | None]],
        bind: Callable[[Shapes], Part],
        ways: Sequence[Sequence[int]] = WAYS,
    ) -> SymbolicGraph | None:
        """The graph of the family of these shapes, with their sizes at hand; None where none is found.

        `open_dims` names the dimensions of each input that may be open. `bind` gives the model's part for
        shapes, which a family not met before asks for a few times.
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
