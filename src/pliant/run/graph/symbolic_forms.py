"""Executables for families of shapes: a new shape of one is bound, not compiled."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from pliant.compiler.executable.encode_image import Encoded
from pliant.compiler.executable.symbolic_program import SymbolicProgram
from pliant.ir.graph import Graph
from pliant.ir.port import Port
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph, open_sizes, symbolic_graph
from pliant.run.graph.lowering import Lowered
from pliant.run.session.ports import Shapes, symbols
from pliant.run.weight_sizes import WeightSizes

_MOST_FORMS = 16
_MOST_FAMILIES, _FAILURE = 16, 8
"""A failure takes as much time as several families that are found."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundForm:
    """A form's program for one shape, and the constants that follow from it."""

    program: Encoded
    weights: Mapping[str, np.ndarray]
    sizes: WeightSizes


@final
class SymbolicForm:
    """One executable, for all sizes of a family for which the compiler decides alike."""

    def __init__(
        self,
        graph: SymbolicGraph,
        lowered: Lowered,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
    ) -> None:
        self.weights, self.addresses = weights, addresses
        self._family, self._made, self._weight_sizes = graph.family, graph.made, lowered.sizes
        self._program = SymbolicProgram(lowered.image, graph.trace, graph.family.names)

    def fits(self, shapes: Shapes) -> bool:
        """Whether these shapes take this executable."""
        sizes = self._family.sizes(shapes)
        return sizes is not None and self._program.holds(sizes)

    def bound(self, shapes: Shapes) -> BoundForm:
        """What runs shapes that fit."""
        sizes = self._family.sizes(shapes)
        assert sizes is not None, f"{shapes} are not of the family"
        program = self._program.at(sizes)
        made = {x: self._made[x].at(sizes, t.shape) for x, t in program.inputs.items() if x in self._made}
        forms: dict[Hashable, int] = {("made", x, id(a)): a.nbytes for x, a in made.items()}
        return BoundForm(
            replace(
                program,
                inputs={x: t for x, t in program.inputs.items() if x not in made},
                weights=(*program.weights, *made),
            ),
            {**self.weights, **made},
            WeightSizes({**self._weight_sizes.forms, **forms}, self._weight_sizes.given),
        )


@final
class SymbolicForms:
    """The forms of one model, made when shapes are met that none of them takes."""

    def __init__(self) -> None:
        self.forms: list[SymbolicForm] = []
        self._graphs: list[SymbolicGraph] = []
        self._failures = 0

    def form(self, shapes: Shapes) -> SymbolicForm | None:
        """The form that takes these shapes, if there is one."""
        return next((form for form in self.forms if form.fits(shapes)), None)

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
