"""Pass `maps`: fuse trees of element-wise operators into one `Map`, a single pass over memory.

Contract: the same values, except that half floats are rounded only once, at the end. A tensor is fused into
its reader only if it has one reader and the same size, so nothing is computed twice. Runs last, because it
removes the patterns that other passes match.
"""

from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.compiler.rules.onnx_elementwise import expression
from pliant.ir.graph import Graph, Node
from pliant.kernels.emit.expression import Expr, leaf, replace_inputs, size
from pliant.kernels.rows.map import MAX_INPUTS, plan_map

MAX_OPERATIONS = 48

_Tree = tuple[Expr, tuple[str, ...]]


def fuse_maps(graph: Graph) -> Graph:
    """The graph with every tree of element-wise operators as one node."""
    trees: dict[str, _Tree] = {}
    made: dict[str, Node] = {}
    drawn: set[str] = set()
    consumers = graph.consumers
    for node in graph.nodes:
        found = expression(node, graph) if len(node.outputs) == 1 else None
        if found is None:
            continue
        y, tree = node.outputs[0], found
        for x in found[1]:
            if x in trees and x not in graph.outputs and len(consumers[x]) == 1:
                fused = _inline(tree, x, trees[x], graph, y)
                if fused is not None:
                    tree = fused
                    drawn.add(x)
        trees[y] = tree
        if tree is not found:
            made[y] = Node("Map", tree[1], (y,), {"expression": str(tree[0])}, node.name)
    if not drawn:
        return graph
    kept = [node for node in graph.nodes if not drawn.intersection(node.outputs)]
    return rebuild_graph(graph, [made.get(node.outputs[0], node) for node in kept])


def _inline(tree: _Tree, x: str, inner: _Tree, graph: Graph, y: str) -> _Tree | None:
    """`tree`, which makes y, with the tree `inner` of its operand x inlined; None if that is no gain.

    An operand that is broadcast would be computed again for every copy.
    """
    if graph.types[x].size != graph.types[y].size:
        return None
    outer, operands = tree
    names = tuple(dict.fromkeys(name for o in operands for name in (inner[1] if o == x else (o,))))
    number = {name: i for i, name in enumerate(names)}
    moved = {i: leaf(number[name], graph.types[name].dtype) for i, name in enumerate(inner[1])}
    replacement = replace_inputs(inner[0], moved)
    by = {
        i: replacement if name == x else leaf(number[name], graph.types[name].dtype)
        for i, name in enumerate(operands)
    }
    fused = replace_inputs(outer, by)
    shapes = [graph.types[name].shape for name in names]
    if len(names) > MAX_INPUTS or size(fused) > MAX_OPERATIONS:
        return None
    if graph.types[y].size and plan_map(graph.types[y].shape, shapes) is None:
        return None
    return fused, names
