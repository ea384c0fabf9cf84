"""Blocks of nodes that are bound together when the shapes of their inputs are known: a whole model, the body
of a loop, a branch, and nodes behind data-dependent shapes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from pliant.errors import GraphError
from pliant.ir.graph import Graph
from pliant.models.onnx.bind.onnx_reachability import captured_names, reachable_nodes
from pliant.models.onnx.bind.onnx_scope import Scope
from pliant.models.onnx.onnx_external import ExternalData
from pliant.models.onnx.onnx_nodes import rename_tensors
from pliant.models.onnx.onnx_tensor import array_of


@dataclass(frozen=True, slots=True, eq=False)
class ScopedNode:
    """A node whose inputs and outputs have the model's names; names in its bodies belong to `scope`.

    `host`: no kernel can run it, whatever is known of its inputs.
    """

    node: Any
    scope: Scope
    host: bool = False

    @property
    def reads(self) -> set[str]:
        """The tensors that it reads, including those that its bodies capture."""
        return {x for x in self.node.input if x} | {self.scope.name(x) for x in captured_names(self.node)}

    @property
    def makes(self) -> list[str]:
        return [y for y in self.node.output if y]


@dataclass(frozen=True, slots=True, eq=False)
class NodeBlock:
    """Nodes in order that compute `outputs` from `inputs`, `constants` and captured tensors."""

    nodes: tuple[ScopedNode, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def reads(self) -> frozenset[str]:
        """The tensors that it needs from outside, its inputs included."""
        made = {y for scoped in self.nodes for y in scoped.makes} | set(self.constants)
        return frozenset({x for scoped in self.nodes for x in scoped.reads} | set(self.outputs)) - made


@dataclass(frozen=True, slots=True, eq=False)
class BoundPart:
    """The bound part of a block: a graph to compile, known values, and the nodes that wait.

    The graph's outputs are the tensors that waiting nodes or the block's outputs read; `known` are the known
    values that they read. Without waiting nodes it is the whole block.
    """

    graph: Graph
    waiting: tuple[ScopedNode, ...]
    known: Mapping[str, np.ndarray]


@final
class PartRebinder:
    """Binds one part of a model repeatedly, for sizes that may change.

    Lookups stay nodes, unless shapes depend on them and more nodes would wait; the first call decides this.
    """

    def __init__(self) -> None:
        self._keeps: bool | None = None

    def bind_part(self, bind: Callable[[bool], BoundPart]) -> BoundPart:
        """The part; the argument of `bind` is whether lookups stay nodes. Raises the errors of `bind`."""
        if self._keeps is not None:
            return bind(self._keeps)
        kept = bind(True)
        plain = bind(False) if kept.waiting else kept
        self._keeps = len(kept.waiting) <= len(plain.waiting)
        return kept if self._keeps else plain


def body_block(
    body: Any, scoped: ScopedNode, fresh: Callable[[str], str], external: ExternalData
) -> NodeBlock:
    """The block of a body of a node; `fresh` makes a new name from a name."""
    inside = scoped.scope.branch_scope(scoped.node)
    constants = {}
    for tensor in body.initializer:
        inside.names[tensor.name] = fresh(inside.prefix + tensor.name)
        constants[inside.names[tensor.name]] = array_of(tensor, external)
    for value in body.input:
        inside.names[value.name] = fresh(inside.prefix + value.name)
    nodes = tuple(scope_nodes(reachable_nodes(body), inside, fresh))
    inputs = tuple(inside.name(value.name) for value in body.input)
    return NodeBlock(nodes, tuple(inside.name(v.name) for v in body.output), inputs, constants)


def scope_nodes(nodes: Iterable[Any], scope: Scope, fresh: Callable[[str], str]) -> Iterable[ScopedNode]:
    """The nodes of a scope, by the model's names."""
    for formal in nodes:
        outputs = [fresh(scope.prefix + y) if scope.depth and y else str(y) for y in formal.output]
        node = rename_tensors(formal, scope.name, outputs, scope.attributes)
        scope.names.update((x, y) for x, y in zip(formal.output, outputs, strict=True) if scope.depth and x)
        yield ScopedNode(node, scope)


def host_names(waiting: Iterable[ScopedNode]) -> str:
    """The host operators among nodes, with the names of some, for messages."""
    found: dict[str, list[str]] = {}
    for scoped in waiting:
        if scoped.host:
            found.setdefault(scoped.node.op_type, []).append(scoped.node.name or scoped.node.output[0])
    return "; ".join(f"{op} (at {shorten_list(at)})" for op, at in sorted(found.items()))


def shorten_list(names: list[str]) -> str:
    """The first three of a list of names."""
    shown = ", ".join(repr(n) for n in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def require_one_graph(part: BoundPart, source: str) -> Graph:
    """The graph of a part that is a whole model. Raises GraphError naming the operators that run between
    graphs.
    """
    if part.waiting:
        raise GraphError(
            f"{source} is not a single graph: these operators set shapes or control flow by data and run "
            f"between executables, {host_names(part.waiting)}. A session can run it; C code and a "
            "compiled directory cannot hold it."
        )
    return part.graph
