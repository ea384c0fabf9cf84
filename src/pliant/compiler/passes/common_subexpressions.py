"""Pass `common`: merge nodes that compute the same value (common subexpressions).

Contract: operators are functions of their inputs, except those that draw random numbers. Two constants are
the same if they are the same array, or small and equal.
"""

import numpy as np

from pliant.compiler.rewrite.rewrite import redirect_tensors
from pliant.ir.graph import Attribute, Graph, Node
from pliant.ir.symbolic import canonical

_DRAWS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)
_COMPARED_BYTES = 4096


def merge_common_subexpressions(graph: Graph) -> Graph:
    """The graph in which each value is computed once."""
    first: dict[tuple[object, ...], Node] = {}
    constants: dict[tuple[object, ...], str] = {}
    instead: dict[str, str] = {}
    for x, array in graph.constants.items():
        if array.nbytes <= _COMPARED_BYTES and x not in graph.outputs:
            value = (str(array.dtype), array.shape, array.tobytes())
            if constants.setdefault(value, x) != x:
                instead[x] = constants[value]
    for node in graph.nodes:
        if node.op in _DRAWS:
            continue
        inputs = tuple(instead.get(x, x) for x in node.inputs)
        which = tuple(bool(y) for y in node.outputs)
        key = (node.op, inputs, which, tuple(sorted((k, _key(v)) for k, v in node.attributes.items())))
        kept = first.setdefault(key, node)
        if kept is not node:
            instead |= {y: k for y, k in zip(node.outputs, kept.outputs, strict=True) if y}
    return redirect_tensors(graph, instead)


def _key(value: Attribute) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes()!r}"
    return f"{type(value).__name__} {canonical(value)!r}"
