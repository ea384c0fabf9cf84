"""Compile a recurrent model's graph for up to a given number of steps."""

from pliant.compiler.executable.assemble_image import assemble
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import CallEntry, encode
from pliant.compiler.executable.stage import StageForm
from pliant.compiler.rewrite.origin import describe_node, with_origins
from pliant.compiler.rules import lower_encoder as coded
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import Graph

_RULES = {**RULES, "PoolRows": coded.RULES["PoolRows"]}


def recurrent_form(graph: Graph, target: Target) -> StageForm:
    """Lower the result of `recurrent_graph`: a stage of it runs only as many steps as an input has."""
    return StageForm(assemble(graph, [_RULES[node.op](node, graph, target) for node in graph.nodes], target))


def describe_calls(graph: Graph, target: Target) -> tuple[CallEntry, ...]:
    """The calls of `recurrent_form`, with each call's operator and the bytes that it moves."""
    described = with_origins(graph, graph)
    lowered = [
        describe_node(node, described, _RULES[node.op](node, described, target)) for node in described.nodes
    ]
    return encode(assemble(described, lowered, target)).rows
