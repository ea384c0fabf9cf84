"""Pass `gelu`: replace the operators that exporters write for GELU by one `Gelu`.

Contract: equal to the written form within rounding. A chain of element-wise operators from x to y is
recognised by its values at sample points, independent of the order of its operations.
"""

from collections.abc import Callable, Iterator
from math import erf

import numpy as np

from pliant.compiler.rewrite.pattern import GraphContext
from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.ir.graph import Graph, Node

_POINTS = np.array([-3.1, -1.7, -0.6, -0.05, 0.0, 0.02, 0.4, 1.3, 2.9])
_MOST_NODES = 12
_erf = np.vectorize(erf)
_GELU = {
    "none": _POINTS / 2 * (1 + _erf(_POINTS / 2**0.5)),
    "tanh": _POINTS / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (_POINTS + 0.044715 * _POINTS**3))),
}


def fuse_gelu(graph: Graph) -> Graph:
    """The graph with GELU as one node."""
    context = GraphContext(graph)
    made: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op not in ("Erf", "Tanh"):
            continue
        found = _gelu(context, node)
        if found is not None:
            x, y, approximate = found
            name = context.producers[y].name
            made[y] = Node("Gelu", (x,), (y,), {"approximate": approximate}, name)
    if not made:
        return graph
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in graph.nodes])


def _gelu(context: GraphContext, node: Node) -> tuple[str, str, str] | None:
    """(x, y, approximation) of the GELU that contains this Erf or Tanh."""
    approximate = "none" if node.op == "Erf" else "tanh"
    inputs = list(_sources(context, node.inputs[0]))
    y = node.outputs[0]
    for _ in range(_MOST_NODES):
        after = context.reader(y, *_FUNCTIONS)
        if after is None:
            return None
        y = after.outputs[0]
        for x in inputs:
            values = _values(context, y, x, _MOST_NODES)
            if values is not None and np.allclose(values, _GELU[approximate], rtol=1e-5, atol=1e-6):
                return x, y, approximate
    return None


def _sources(context: GraphContext, tensor: str) -> Iterator[str]:
    """Tensors from which `tensor` may be computed element by element, nearest first."""
    seen = [tensor]
    for x in seen:
        yield x
        node = context.maker(x, *_FUNCTIONS)
        if node is not None and len(seen) < _MOST_NODES:
            same = [i for i in node.inputs if context.number(i) is None and i not in seen]
            seen += [i for i in same if context.graph.types[i] == context.graph.types[tensor]]


def _values(context: GraphContext, y: str, x: str, budget: int) -> np.ndarray | None:
    """y at the sample points of x; None if it depends on anything else."""
    if y == x:
        return _POINTS
    number = context.number(y)
    if number is not None:
        return np.full_like(_POINTS, number)
    node = context.maker(y, *_FUNCTIONS)
    if node is None or budget == 0:
        return None
    operands = []
    for i in node.inputs:
        values = _values(context, i, x, budget - 1)
        if values is None:
            return None
        operands.append(values)
    with np.errstate(all="ignore"):
        return _apply(node.op, operands)


def _apply(op: str, operands: list[np.ndarray]) -> np.ndarray:
    return np.asarray(_FUNCTIONS[op](operands[0], operands[-1]))


_FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Pow": np.power,
    "Neg": lambda a, _: -a,
    "Erf": lambda a, _: _erf(a),
    "Tanh": lambda a, _: np.tanh(a),
    "Reciprocal": lambda a, _: 1 / a,
}
