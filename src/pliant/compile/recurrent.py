"""A recurrent model's graph as a form for up to so many steps. Knows rules by operator, no weights."""

from pliant.compile.assemble import assemble
from pliant.compile.call import Target
from pliant.compile.lower import coded
from pliant.compile.lower.rules import RULES
from pliant.compile.stage import Form
from pliant.ir.graph import Graph

_RULES = {**RULES, "PoolRows": coded.RULES["PoolRows"]}


def recurrent_form(graph: Graph, target: Target) -> Form:
    """What `models.recurrent_graph` makes, lowered: a stage of it walks as few steps as an input has."""
    return Form(assemble(graph, [_RULES[node.op](node, graph, target) for node in graph.nodes], target))
