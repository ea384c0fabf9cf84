"""Executables for families of shapes: a new shape of one is bound, not compiled."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.binding import Bound, ProgramNumbers
from pliant.compiler.executable.encode_image import Encoded, Row
from pliant.compiler.executable.symbolic_program import SymbolicProgram
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph
from pliant.ir.port import Port
from pliant.kernels.runtime.aligned_memory import address
from pliant.kernels.runtime.call_table import Table
from pliant.kernels.runtime.thread_pool import Pool
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph, open_sizes, symbolic_graph
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, Arrays, ExecutableStage, run_bound
from pliant.run.graph.lowering import Lowered
from pliant.run.session.ports import Feeds, Shapes, symbols
from pliant.run.weight_sizes import WeightSizes

T = TypeVar("T")

_MOST_FORMS = 16
_MOST_FAMILIES, _FAILURE = 16, 8
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
        self._family, self._made = graph.family, graph.made
        self.pool, self._arena = pool, arena
        self._bound = Bound(self.program.program, addresses)
        for space, array in weights.items():
            self._bound.point(space, array.ctypes.data)
        self._numbers: ProgramNumbers | None = None

    def sizes(self, shapes: Shapes) -> tuple[int, ...] | None:
        """The open sizes of these shapes; None where they do not take this executable."""
        sizes = self._family.sizes(shapes)
        return sizes if sizes is not None and self.program.holds(sizes) else None

    def stage(self, sizes: tuple[int, ...]) -> "SizedStage":
        """What runs shapes of these sizes."""
        numbers = self.program.numbers(sizes)
        made = {x: self._made[x].at(sizes, t.shape) for x, t in numbers.inputs.items() if x in self._made}
        return SizedStage(self, sizes, numbers, made)

    def run(
        self, stage: "SizedStage", tensors: AllTensors, out: Feeds | None, walk: Callable[[Table], T]
    ) -> tuple[Arrays, T]:
        """As `ExecutableStage.walk`, for the sizes of one of its stages; and what `walk` gives."""
        self._resize(stage)
        fixed = {**self.weights, **stage.made}
        return run_bound(self._bound, stage.inputs, stage.output_types, fixed, tensors, out, walk)

    def _resize(self, stage: "SizedStage") -> None:
        if stage.numbers is not self._numbers:
            self._numbers = None  # an interrupt on the way leaves it of no size
            self._bound.resize(stage.numbers)
            for x, array in stage.made.items():
                self._bound.point(x, address(array))
            self.pool.reserve(stage.numbers.scratch_bytes)
            self._numbers = stage.numbers
        self._arena.hold(stage.arena_bytes)
        self._bound.point(ARENA, self._arena.address)


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

    def graph(
        self, shapes: Shapes, ports: Sequence[Port], bind: Callable[[Shapes], Graph]
    ) -> SymbolicGraph | None:
        """The graph of the family of these shapes, with their sizes at hand; None where none is found.

        `bind` gives the model's graph for shapes, which a family not met before asks for a few times.
        """
        for graph in self._graphs:
            sizes = graph.family.sizes(shapes)
            if sizes is not None:
                return graph.at(sizes)
        if len(self._graphs) + self._failures * _FAILURE >= _MOST_FAMILIES or any(
            port.dims is None for port in ports
        ):
            return None
        open_dims = {port.name: symbols(port) for port in ports}
        if not open_sizes(shapes, open_dims):
            return None
        found = symbolic_graph(shapes, open_dims, bind)
        if found is None:
            self._failures += 1
        else:
            self._graphs.append(found)
        return found

    def give_up(self) -> None:
        """Look for no more families: here sizes cannot be open."""
        self._graphs, self._failures = [], _MOST_FAMILIES

    def add(self, form: SymbolicForm) -> None:
        """Keep a form; the oldest goes where there are many."""
        self.forms = [*self.forms[-_MOST_FORMS + 1 :], form]
