"""Which rule lowers which operator. Knows the families by name, none of their kernels."""

from collections.abc import Callable, Mapping

from pliant.compile.call import Call, Lowered, Target
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
    scaled_matmul,
    select,
    signal,
)
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.table import MAX_UNITS

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
    scaled_matmul.RULES,
    attention.RULES,
    einsum.RULES,
    quantize.RULES,
    pool.RULES,
    recurrent.RULES,
)
RULES: Mapping[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.items()}


def lower(graph: Graph, target: Target) -> list[Lowered]:
    """Every node lowered, in order.

    Raises GraphError naming all operators without a rule at once, or the first node that has no kernel for
    its attributes, types or shapes. Any other exception is a mistake in a rule.
    """
    unknown = sorted({node.op for node in graph.nodes if node.op not in RULES})
    if unknown:
        first = next(node for node in graph.nodes if node.op in unknown)
        raise GraphError(f"no kernel exists for {', '.join(unknown)} (first at node {first.name!r}).")
    return [_lower(node, graph, target) for node in graph.nodes]


def _lower(node: Node, graph: Graph, target: Target) -> Lowered:
    """One node's calls. A GraphError names the node; other exceptions are mistakes in a rule and pass."""
    try:
        lowered = RULES[node.op](node, graph, target)
        for call in lowered.calls:
            _check_units(call)
    except GraphError as error:
        if repr(node.name) in str(error):
            raise
        shown = ", ".join(f"{x}: {graph.types[x]}" for x in node.inputs if x)
        raise GraphError(
            f"node {node.name!r} ({node.op}) cannot be compiled with ({shown}): {error}"
        ) from error
    return lowered


def _check_units(call: Call) -> None:
    """Raises GraphError for more units than the native pool counts; it would hand out others."""
    if call.n_units + call.grain > MAX_UNITS:
        raise GraphError(
            f"its {call.n_units} units of work are more than the {MAX_UNITS} that a kernel is called for. "
            "Split the tensor, or feed smaller shapes."
        )
