"""Compile a recurrent model's graph for up to a given number of steps."""

from pliant.compiler.executable.assemble_image import assemble
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.stage import Form
from pliant.compiler.rules import lower_encoder as coded
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import Graph

_RULES = {**RULES, "PoolRows": coded.RULES["PoolRows"]}


def recurrent_form(graph: Graph, target: Target) -> Form:
    """What `recurrent_graph` makes, lowered: a stage of it walks as few steps as an input has."""
    return Form(assemble(graph, [_RULES[node.op](node, graph, target) for node in graph.nodes], target))
