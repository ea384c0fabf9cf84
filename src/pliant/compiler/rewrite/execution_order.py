"""Find an execution order with a lower memory peak.

Contract: the same nodes in another topological order, or the graph itself if the greedy search finds no lower
peak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pliant.ir.graph import Graph, Node
from pliant.ir.symbolic import plain_value

_ALIASES = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))


def lower_peak(graph: Graph) -> Graph:
    """Greedy order: always the ready node after which the fewest bytes are alive; the first one on a tie."""
    ordered = _greedy(graph)
    return replace(graph, nodes=ordered) if peak_bytes(graph, ordered) < peak_bytes(graph) else graph


def peak_bytes(graph: Graph, nodes: Sequence[Node] | None = None) -> int:
    """The most bytes of intermediate tensors alive at once; inputs, outputs and constants do not count."""
    nodes = graph.nodes if nodes is None else nodes
    roots = _roots(graph)
    left = _readers(graph, roots)
    alive = peak = 0
    for node in nodes:
        made = {roots[y] for y in node.outputs if y} - {roots[x] for x in node.inputs if x in roots}
        alive += sum(_bytes(graph, y) for y in made)
        peak = max(peak, alive)
        alive -= _freed_bytes(graph, node, roots, left)
    return peak


def _greedy(graph: Graph) -> tuple[Node, ...]:
    roots = _roots(graph)
    left = _readers(graph, roots)
    makers = graph.producers
    waiting = {i: {x for x in node.inputs if x in makers} for i, node in enumerate(graph.nodes)}
    readers: dict[str, list[int]] = {}
    for i, inputs in waiting.items():
        for x in inputs:
            readers.setdefault(x, []).append(i)
    ready = [i for i, inputs in waiting.items() if not inputs]
    found: list[Node] = []
    while ready:
        best = min(ready, key=lambda i: (_growth(graph, graph.nodes[i], roots, left), i))
        ready.remove(best)
        node = graph.nodes[best]
        found.append(node)
        _freed_bytes(graph, node, roots, left)
        for y in node.outputs:
            for i in readers.get(y, ()) if y else ():
                waiting[i].discard(y)
                if not waiting[i]:
                    ready.append(i)
    return tuple(found)


def _growth(graph: Graph, node: Node, roots: Mapping[str, str], left: Mapping[str, int]) -> int:
    """The change of live bytes by running a node."""
    read = {roots[x] for x in node.inputs if x in roots}
    made = {roots[y] for y in node.outputs if y} - read
    return sum(_bytes(graph, y) for y in made) - sum(
        _bytes(graph, x) for x in read if left[x] == _times(node, roots, x)
    )


def _freed_bytes(graph: Graph, node: Node, roots: Mapping[str, str], left: dict[str, int]) -> int:
    """Bytes freed after a node; decrements the counts of remaining readers."""
    freed = 0
    for x in {roots[x] for x in node.inputs if x in roots}:
        left[x] -= _times(node, roots, x)
        freed += _bytes(graph, x) if left[x] == 0 else 0
    return freed


def _times(node: Node, roots: Mapping[str, str], root: str) -> int:
    return sum(roots.get(x) == root for x in node.inputs)


def _roots(graph: Graph) -> dict[str, str]:
    """The tensor whose memory each tensor uses."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        for y in node.outputs:
            if y:
                roots[y] = roots.get(node.inputs[0], y) if node.op in _ALIASES else y
    return roots


def _readers(graph: Graph, roots: Mapping[str, str]) -> dict[str, int]:
    """The number of reads of each root; graph outputs have one more, so they are never freed."""
    left = dict.fromkeys(roots.values(), 0)
    for node in graph.nodes:
        for x in node.inputs:
            if x in roots:
                left[roots[x]] += 1
    for y in graph.outputs:
        if y in roots:
            left[roots[y]] += 1
    return left


def _bytes(graph: Graph, root: str) -> int:
    # A symbolic size counts with its current value: any order is correct.
    return 0 if root in graph.outputs else plain_value(graph.types[root].n_bytes)
