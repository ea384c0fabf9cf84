"""The table of lowering rules, by operator."""

from collections.abc import Callable, Mapping

from pliant.compiler.executable.call import Call, LoweredNode, Target
from pliant.compiler.rules import lower_attention as attention
from pliant.compiler.rules import lower_elementwise as elementwise
from pliant.compiler.rules import lower_extremum as extremum
from pliant.compiler.rules import lower_norm as norm
from pliant.compiler.rules import lower_recurrent as recurrent
from pliant.compiler.rules import lower_reduce as reduce
from pliant.compiler.rules import lower_select as select
from pliant.compiler.rules import lower_signal as signal
from pliant.compiler.rules import lower_texts as texts
from pliant.compiler.rules.conv import lower_conv as conv
from pliant.compiler.rules.conv import lower_conv_integer as conv_integer
from pliant.compiler.rules.conv import lower_conv_other as conv_other
from pliant.compiler.rules.conv import lower_pool as pool
from pliant.compiler.rules.conv import lower_resize as resize
from pliant.compiler.rules.conv import lower_sample as sample
from pliant.compiler.rules.move import lower_alias as alias
from pliant.compiler.rules.move import lower_index as index
from pliant.compiler.rules.move import lower_move as move
from pliant.compiler.rules.move import lower_pad as pad
from pliant.compiler.rules.product import loop_calls as loops
from pliant.compiler.rules.product import lower_bf16_matmul as bf16_matmul
from pliant.compiler.rules.product import lower_byte_matmul as byte_matmul
from pliant.compiler.rules.product import lower_einsum as einsum
from pliant.compiler.rules.product import lower_matmul as matmul
from pliant.compiler.rules.product import lower_plane_matmul as plane_matmul
from pliant.compiler.rules.product import lower_quantize as quantize
from pliant.compiler.rules.product import lower_scaled_matmul as scaled_matmul
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.runtime.call_table import MAX_UNITS

LoweringRule = Callable[[Node, Graph, Target], LoweredNode]

_FAMILIES: tuple[Mapping[str, LoweringRule], ...] = (
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
    byte_matmul.RULES,
    bf16_matmul.RULES,
    scaled_matmul.RULES,
    attention.RULES,
    einsum.RULES,
    quantize.RULES,
    pool.RULES,
    recurrent.RULES,
)
RULES: Mapping[str, LoweringRule] = {op: rule for family in _FAMILIES for op, rule in family.items()}
"""The rules of all operators allowed in models."""


def lower(graph: Graph, target: Target) -> list[LoweredNode]:
    """Every node lowered, in order.

    Raises GraphError naming all operators without a rule, or the first node that has no kernel for its
    attributes, types or shapes. Any other exception is a bug in a rule.
    """
    unknown = sorted({node.op for node in graph.nodes if _rule(node.op) is None})
    if unknown:
        first = next(node for node in graph.nodes if node.op in unknown)
        raise GraphError(f"no kernel exists for {', '.join(unknown)} (first at node {first.name!r}).")
    return [_lower(node, graph, target) for node in graph.nodes]


def _rule(op: str) -> LoweringRule | None:
    """The rule of a model's operator, or of an operator inserted by passes."""
    return RULES.get(op) or texts.RULES.get(op) or index.PASS_RULES.get(op)


def _lower(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """One node's calls. A GraphError names the node; other exceptions are bugs in a rule and are passed
    on.
    """
    try:
        rule = _rule(node.op)
        assert rule is not None, node.op
        lowered = rule(node, graph, target)
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
    """Raise GraphError for more units than the native pool can count."""
    if call.n_units + call.grain > MAX_UNITS:
        raise GraphError(
            f"its {call.n_units} units of work are more than the {MAX_UNITS} that a kernel is called for. "
            "Split the tensor, or feed smaller shapes."
        )
