"""The interface of a family of operators to the scheduler: its forms, and the nodes that run in a form.

A node's tensors with a layout are its non-constant inputs and its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pliant.compiler.layout.layout_problem import Layout, OperatorForm
from pliant.compiler.layout.layouts import identity
from pliant.ir.graph import Graph, Node, TensorType

Layouts = Mapping[str, Layout]


@dataclass(frozen=True, slots=True)
class NodeReplacement:
    """Nodes that compute one node in a form; its tensors keep their names and have physical types.

    `constants` and `types` are those of new tensors.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    types: Mapping[str, TensorType] = field(default_factory=dict)


FollowRule = Callable[[Node, Graph, str, Layout], Layouts | None]
"""(node, graph, tensor, layout) -> the layouts of all its tensors if one has this layout, or None."""

ProposeRule = Callable[[Node, Graph, Mapping[str, Sequence[Layout]]], Sequence[tuple[Layouts, str]]]
"""(node, graph, candidates of its tensors) -> (layouts, variant) in which it can run, besides the default."""

RealiseRule = Callable[[Node, Graph, Layouts, str], NodeReplacement]


def _no_layouts(node: Node, graph: Graph) -> Mapping[str, Sequence[Layout]]:
    return {}


@dataclass(frozen=True, slots=True)
class OperatorFamily:
    """A kind of operator. `preferred` are layouts to add as candidates of its tensors.

    `has_gap_forms`: `follow` supports gaps between rows.
    """

    realise: RealiseRule
    follow: FollowRule | None = None
    propose: ProposeRule | None = None
    preferred: Callable[[Node, Graph], Mapping[str, Sequence[Layout]]] = _no_layouts
    has_gap_forms: bool = False


def tensors_in(node: Node, graph: Graph) -> tuple[str, ...]:
    """The distinct non-constant inputs."""
    return tuple(dict.fromkeys(x for x in node.inputs if x and x not in graph.constants))


def tensors_out(node: Node) -> tuple[str, ...]:
    """The outputs that are present."""
    return tuple(y for y in node.outputs if y)


def default_layouts(node: Node, graph: Graph) -> dict[str, Layout]:
    """All tensors row-major."""
    names = (*tensors_in(node, graph), *tensors_out(node))
    return {x: identity(len(graph.types[x].shape)) for x in names}


def form_of(node: Node, graph: Graph, layouts: Layouts, variant: str = "") -> OperatorForm:
    """A form from layouts by name, with time 0."""
    inputs = tuple(layouts[x] for x in tensors_in(node, graph))
    return OperatorForm(inputs, tuple(layouts[y] for y in tensors_out(node)), 0.0, variant)


def layouts_of(node: Node, graph: Graph, form: OperatorForm) -> dict[str, Layout]:
    """A form's layouts by name."""
    names = (*tensors_in(node, graph), *tensors_out(node))
    return dict(zip(names, (*form.inputs, *form.outputs), strict=True))
