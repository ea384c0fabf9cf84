"""Which rule lowers which operator. Knows the families by name, none of their kernels."""

from collections.abc import Callable, Mapping

from pliant.compile.call import Lowered, Target
from pliant.compile.lower import (
    alias,
    attention,
    conv,
    conv_integer,
    conv_other,
    einsum,
    elementwise,
    extremum,
    index,
    loops,
    matmul,
    move,
    norm,
    pad,
    plane_matmul,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    sample,
    select,
    signal,
)
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node

Rule = Callable[[Node, Graph, Target], Lowered]

_FAMILIES: tuple[Mapping[str, Rule], ...] = (
    alias.RULES,
    elementwise.RULES,
    reduce.RULES,
    extremum.RULES,
    norm.RULES,
    move.RULES,
    index.RULES,
    pad.RULES,
    select.RULES,
    resize.RULES,
    sample.RULES,
    signal.RULES,
    conv.RULES,
    conv_integer.RULES,
    conv_other.RULES,
    loops.RULES,
    matmul.RULES,
    plane_matmul.RULES,
    attention.RULES,
    einsum.RULES,
    quantize.RULES,
    pool.RULES,
    recurrent.RULES,
)
RULES: Mapping[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.items()}


def lower(graph: Graph, target: Target) -> list[Lowered]:
    """Every node lowered, in order. Raises GraphError naming all operators without a rule at once."""
    unknown = sorted({node.op for node in graph.nodes if node.op not in RULES})
    if unknown:
        first = next(node for node in graph.nodes if node.op in unknown)
        raise GraphError(f"no kernel exists for {', '.join(unknown)} (first at node {first.name!r}).")
    return [_lower(node, graph, target) for node in graph.nodes]


def _lower(node: Node, graph: Graph, target: Target) -> Lowered:
    """One node's calls. ONNX's inference lets some wild attributes pass; a rule then trips over them."""
    try:
        return RULES[node.op](node, graph, target)
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        shown = ", ".join(f"{x}: {graph.types[x]}" for x in node.inputs if x)
        raise GraphError(
            f"node {node.name!r} ({node.op}) cannot be compiled with ({shown}) and {dict(node.attributes)}: "
            f"{type(error).__name__} {error}".rstrip()
        ) from error
