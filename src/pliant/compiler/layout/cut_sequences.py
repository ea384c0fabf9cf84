"""Cut a graph into longest sequences (FluidML 3, Algorithms 1 and 2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.compiler.layout.layout_problem import Operator


@dataclass(frozen=True, slots=True)
class OperatorSequence:
    """A chain of operators: `edges[i]` is an input of `operators[i]`, `edges[i + 1]` its output."""

    operators: tuple[Operator, ...]
    edges: tuple[str, ...]


def longest_sequence(operators: Sequence[Operator]) -> OperatorSequence:
    """The longest sequence of a graph, in operators (Algorithm 1); the first one on a tie.

    Edges from outside have distance 0; an output edge has the largest distance of the operator's input edges
    plus one. The path is traced back from the edge of the largest distance. `operators` are in order.
    """
    distance: dict[str, int] = {}
    entered: dict[str, tuple[Operator, str]] = {}
    for operator in operators:
        furthest = max(operator.inputs, key=lambda e: distance.get(e, 0), default="")
        for edge in operator.outputs:
            distance[edge] = distance.get(furthest, 0) + 1
            entered[edge] = (operator, furthest)
    edge = max(distance, key=lambda e: distance[e])
    steps: list[Operator] = []
    edges = [edge]
    while edge in entered:
        operator, edge = entered[edge]
        steps.append(operator)
        if edge:
            edges.append(edge)
    if len(edges) == len(steps):  # the first operator reads nothing
        edges.append("")
    return OperatorSequence(tuple(reversed(steps)), tuple(reversed(edges)))


def cut_sequences(operators: Sequence[Operator]) -> tuple[OperatorSequence, ...]:
    """The longest sequence, removed; then those of each remaining part (Algorithm 2).

    Every operator is in exactly one sequence. Implemented without recursion, so depth is not limited.
    """
    found: list[OperatorSequence] = []
    parts = list(reversed(_components(operators)))
    while parts:
        part = parts.pop()
        path = longest_sequence(part)
        found.append(path)
        taken = {o.name for o in path.operators}
        parts += reversed(_components([o for o in part if o.name not in taken]))
    return tuple(found)


def _components(operators: Sequence[Operator]) -> list[list[Operator]]:
    """The connected components of operators that share edges, each in the given order."""
    makers = {edge: o.name for o in operators for edge in o.outputs}
    root = {o.name: o.name for o in operators}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for o in operators:
        for edge in _known_edges(o.inputs, makers):
            root[find(makers[edge])] = find(o.name)
    parts: dict[str, list[Operator]] = {}
    for o in operators:
        parts.setdefault(find(o.name), []).append(o)
    return list(parts.values())


def _known_edges(edges: Iterable[str], makers: dict[str, str]) -> list[str]:
    return [e for e in edges if e in makers]
