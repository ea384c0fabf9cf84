"""Insert gaps between rows that would map to the same cache sets.

Rows at a distance of a multiple of 4 KB map to one set of an L1 cache, and a product reads several rows at
once. Contract: equal outputs; only tensors change that are made by a product and read as rows by products
only.
"""

from collections.abc import Mapping, Sequence

from pliant.compiler.layout.apply_schedule import apply_schedule
from pliant.compiler.layout.layout_forms import FAMILIES
from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import GAP, identity
from pliant.compiler.layout.operator_family import default_layouts, form_of
from pliant.ir.graph import Graph, Node

PAGE_BYTES = 4096
_MIN_ROWS = 4
_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm")


def insert_gaps(graph: Graph) -> Graph:
    """`graph` with a gap after each row of such tensors; the same graph if there are none."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for x in node.inputs:
            readers.setdefault(x, []).append(node)
    layouts: dict[str, Layout] = {x: identity(len(t.shape)) for x, t in graph.types.items()}
    parted = {}
    for node in graph.nodes:
        y = node.outputs[0]
        if node.op in _PRODUCTS and _rows_collide(graph, y) and _may_insert(graph, node, readers.get(y, ())):
            parted[y] = layouts[y] + GAP
    if not parted:
        return graph
    forms = []
    for node in graph.nodes:
        own = default_layouts(node, graph)
        forms.append(form_of(node, graph, own | {x: parted[x] for x in own if x in parted}))
    return apply_schedule(graph, layouts | parted, forms).graph


def _rows_collide(graph: Graph, y: str) -> bool:
    type_ = graph.types[y]
    rows = type_.shape[-2] if len(type_.shape) > 1 else 0
    step = type_.shape[-1] * type_.itemsize if rows else 0
    return type_.dtype == "float32" and rows >= _MIN_ROWS and step > 0 and step % PAGE_BYTES == 0


def _may_insert(graph: Graph, node: Node, readers: Sequence[Node]) -> bool:
    y = node.outputs[0]
    if y in graph.outputs or not readers:
        return False
    is_rows = all(
        r.op in _PRODUCTS and y not in r.inputs[1:] and r.inputs[1] in graph.constants for r in readers
    )
    return is_rows and all(_can_run(graph, n, y) for n in (node, *readers))


def _can_run(graph: Graph, node: Node, y: str) -> bool:
    """Whether `node` has a form in which `y` alone has gaps."""
    family = FAMILIES[node.op]
    layout = identity(len(graph.types[y].shape)) + GAP
    wanted = default_layouts(node, graph) | {y: layout}
    offered: Mapping[str, Sequence[Layout]] = {y: (layout,)}
    return family.propose is not None and (wanted, "") in family.propose(node, graph, offered)
