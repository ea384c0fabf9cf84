"""Queries over a graph's neighbourhoods, shared by passes."""

from collections.abc import Mapping

from pliant.ir.graph import Graph, Node


class GraphContext:
    """A graph with maps of its producers and consumers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers: Mapping[str, Node] = graph.producers
        self.consumers: Mapping[str, tuple[Node, ...]] = graph.consumers
        self._outputs = frozenset(graph.outputs)

    def maker(self, tensor: str, *ops: str) -> Node | None:
        """The node that makes `tensor`, if it is one of `ops`."""
        node = self.producers.get(tensor)
        return node if node is not None and node.op in ops else None

    def reader(self, tensor: str, *ops: str) -> Node | None:
        """The only node that reads `tensor`, if it is one of `ops` and `tensor` is not an output."""
        nodes = self.consumers.get(tensor, ())
        if len(nodes) != 1 or tensor in self._outputs or (ops and nodes[0].op not in ops):
            return None
        return nodes[0]

    def number(self, tensor: str) -> float | None:
        """The value of a scalar constant."""
        array = self.graph.constants.get(tensor)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def with_number(self, node: Node) -> tuple[str, float] | None:
        """The other operand and the number, if one of two operands is a scalar constant (for Div, the
        second).
        """
        a, b = node.inputs
        if (number := self.number(b)) is not None:
            return a, number
        if node.op != "Div" and (number := self.number(a)) is not None:
            return b, number
        return None

    def scaled(self, tensor: str) -> tuple[str, float]:
        """(x, c) with tensor = c * x, following multiplications by numbers backwards."""
        factor = 1.0
        while (node := self.maker(tensor, "Mul", "Div")) is not None:
            found = self.with_number(node)
            if found is None or self.graph.types[found[0]].shape != self.graph.types[tensor].shape:
                break
            tensor = found[0]
            factor = factor * found[1] if node.op == "Mul" else factor / found[1]
        return tensor, factor


def other_operand(node: Node, tensor: str) -> str:
    """The operand that is not `tensor`, of two operands."""
    a, b = node.inputs
    return b if a == tensor else a
