"""Apply a schedule: the graph with physical types, operators in their chosen forms, reorders as nodes.

Later stages do not use layouts. Contract: equal outputs within rounding; inputs and outputs of the graph keep
their types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.compiler.layout.layout_forms import realise
from pliant.compiler.layout.layout_problem import Layout, OperatorForm
from pliant.compiler.layout.layouts import physical_type
from pliant.compiler.layout.operator_family import Layouts, NodeReplacement, layouts_of
from pliant.compiler.layout.reorders import reorder
from pliant.compiler.rewrite.rewrite import constant_type
from pliant.ir.graph import Graph, Node, TensorType


@dataclass(frozen=True, slots=True)
class AppliedSchedule:
    """The scheduled graph, and the number of inserted reorders."""

    graph: Graph
    n_reorders: int


def apply_schedule(graph: Graph, layouts: Layouts, forms: Sequence[OperatorForm]) -> AppliedSchedule:
    """`graph` with every tensor in its layout of `layouts`, and node i in `forms[i]`."""
    work = _LayoutRewriter(graph, layouts)
    for node, form in zip(graph.nodes, forms, strict=True):
        work.add(node, form)
    return work.result()


class _LayoutRewriter:
    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self.graph, self.layouts = graph, layouts
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = dict(graph.constants)
        self.types: dict[str, TensorType] = {
            x: physical_type(t, layouts[x]) if x in layouts else t for x, t in graph.types.items()
        }
        self.moved: dict[tuple[str, Layout], str] = {}
        self.n_reorders = 0

    def add(self, node: Node, form: OperatorForm) -> None:
        wanted = layouts_of(node, self.graph, form)
        made = realise(node, self.graph, form)
        names: dict[str, str] = {}
        after: list[tuple[str, Layout]] = []
        for x, layout in wanted.items():
            if layout == self.layouts[x]:
                continue
            if x in node.outputs:
                names[x] = self.moved[x, layout] = self._named(x, layout)
                after.append((x, layout))
            else:
                names[x] = self._brought(x, layout)
        self._put(made, names)
        for y, layout in after:
            self._reorder(y, (names[y], y), layout, self.layouts[y])

    def _put(self, made: NodeReplacement, names: Mapping[str, str]) -> None:
        self.constants |= made.constants
        self.types |= made.types
        for part in made.nodes:
            inputs = tuple(names.get(x, x) for x in part.inputs)
            outputs = tuple(names.get(y, y) for y in part.outputs)
            same = (inputs, outputs) == (part.inputs, part.outputs)
            self.nodes.append(part if same else replace(part, inputs=inputs, outputs=outputs))

    def _brought(self, x: str, layout: Layout) -> str:
        """The tensor in another layout, reordered once for all its readers in that layout."""
        if (x, layout) not in self.moved:
            self.moved[x, layout] = self._named(x, layout)
            self._reorder(x, (x, self.moved[x, layout]), self.layouts[x], layout)
        return self.moved[x, layout]

    def _named(self, x: str, layout: Layout) -> str:
        name = f"{x}@{layout}"
        self.types[name] = physical_type(self.graph.types[x], layout)
        return name

    def _reorder(self, edge: str, names: tuple[str, str], have: Layout, want: Layout) -> None:
        self.n_reorders += 1
        self._put(reorder(*names, self.graph.types[edge], have, want), {})

    def result(self) -> AppliedSchedule:
        read = {x for node in self.nodes for x in node.inputs} | set(self.graph.outputs)
        constants = {x: a for x, a in self.constants.items() if x in read}
        made = {y for node in self.nodes for y in node.outputs if y}
        named = made | set(constants) | set(self.graph.inputs)
        types = {x: t for x, t in self.types.items() if x in named}
        types |= {x: constant_type(a) for x, a in constants.items() if x not in self.graph.constants}
        graph = replace(self.graph, nodes=tuple(self.nodes), constants=constants, types=types)
        return AppliedSchedule(graph, self.n_reorders)
