"""Find the nodes of a model that run, and limit their number."""

from collections.abc import Iterable, Mapping
from typing import Any

from pliant.errors import GraphError
from pliant.models.onnx.bind.onnx_scope import MAX_DEPTH

MAX_NODES = 200_000
"""Limit of nodes: functions that call functions can grow without bound."""

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function in a model."""


def check_size(proto: Any, functions: Mapping[FunctionKey, Any], source: str) -> None:
    """Raises GraphError for recursive functions, and for calls that are too many or nested too deeply."""
    sizes: dict[FunctionKey, int] = {}

    def size(nodes: Iterable[Any], depth: int) -> int:
        if depth > MAX_DEPTH:
            raise GraphError(f"the functions of {source} call each other more than {MAX_DEPTH} deep.")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, depth + 1)
            total += sizes.get(key, 1)
        return total

    if size(proto.graph.node, 0) > MAX_NODES:
        raise GraphError(f"{source} expands to more than {MAX_NODES} nodes.")


def reachable_nodes(graph: Any) -> list[Any]:
    """The nodes that outputs depend on, in order; others are dropped."""
    wanted = {v.name for v in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(_read(node))
    return kept[::-1]


def _read(node: Any) -> set[str]:
    """Names that a node reads, including those that its bodies capture."""
    return {x for x in node.input if x} | captured_names(node)


def node_bodies(node: Any) -> list[Any]:
    """The graphs that a node carries: branches, and bodies of loops."""
    return [body for a in node.attribute for body in (*([a.g] if a.HasField("g") else ()), *a.graphs)]


def captured_names(node: Any) -> set[str]:
    """Names that the bodies of a node capture."""
    return {x for body in node_bodies(node) for x in _free(body)}


def _free(body: Any) -> set[str]:
    own = {v.name for v in body.input} | {t.name for t in body.initializer}
    made = own | {y for node in body.node for y in node.output}
    read = {x for node in body.node for x in _read(node)} | {v.name for v in body.output}
    return read - made
