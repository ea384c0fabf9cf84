"""Pass `pushes`: move transposes past element-wise operators if that leaves fewer of them.

Contract: the same values; no more transposes than before. Two operands with the same transpose become one
transposed result; a transpose moves towards other transposes and is merged with them (pass `transposes`). A
transpose that only moves dimensions of length 1 becomes a reshape. Runs after the passes that look for
transposes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pliant.compiler.passes.transposes import permutation
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.compiler.rules.onnx_elementwise import FORMULAS
from pliant.ir.graph import Graph, Node, TensorType
from pliant.ir.symbolic import size_array

ELEMENTWISE = frozenset(FORMULAS) - {"CastLike"}
"""Operators on elements at the same index of operands, which are broadcast as in numpy."""

_MAX_CHAIN = 32


@dataclass(frozen=True, slots=True)
class _TransposedSource:
    """A tensor is `source` with its dimensions in the order `perm`."""

    source: str
    perm: tuple[int, ...]


def push_transposes(graph: Graph) -> Graph:
    """The graph in which no element-wise operator prevents merging transposes."""
    consumers = graph.consumers
    known: dict[str, _TransposedSource] = {}
    nodes: list[Node] = []
    types: dict[str, TensorType] = {}
    constants: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if node.op == "Transpose":
            if _moves_nothing(node, graph):
                shape = unused_name(graph, f"{node.outputs[0]}.shape")
                constants[shape] = size_array(graph.types[node.outputs[0]].shape)
                reshape = replace(node, op="Reshape", inputs=(node.inputs[0], shape))
                nodes.append(replace(reshape, attributes={"allowzero": 1}))
                continue
            known[node.outputs[0]] = _TransposedSource(node.inputs[0], permutation(node, graph))
        perm = _perm_to_push(node, graph, known, consumers)
        if perm is None:
            nodes.append(node)
            continue
        inputs = tuple(
            known[x].source if x in known else _operand_before(node, i, perm, graph, constants)
            for i, x in enumerate(node.inputs)
        )
        y = node.outputs[0]
        inner = unused_name(graph, f"{y}.before")
        types[inner] = _type_before(graph.types[y], perm)
        known[y] = _TransposedSource(inner, perm)
        nodes.append(replace(node, inputs=inputs, outputs=(inner,)))
        nodes.append(Node("Transpose", (inner,), (y,), {"perm": perm}, node.name))
    if not types and not constants:
        return graph
    read = {x for node in nodes for x in node.inputs} | set(graph.outputs)
    kept = [node for node in nodes if node.op != "Transpose" or node.outputs[0] in read]
    return rebuild_graph(graph, kept, constants, types)


def _perm_to_push(
    node: Node,
    graph: Graph,
    known: Mapping[str, _TransposedSource],
    consumers: Mapping[str, tuple[Node, ...]],
) -> tuple[int, ...] | None:
    """The permutation of the operands' dimensions, if it can and should be moved past the node."""
    if node.op not in ELEMENTWISE or len([y for y in node.outputs if y]) != 1:
        return None
    moved = {x for x in node.inputs if x in known}
    perms = {known[x].perm for x in moved}
    if len(perms) != 1 or not _is_free(node, moved, graph):
        return None
    is_alone = all(consumers[x] == (node,) and x not in graph.outputs for x in moved)
    if not is_alone or not (len(moved) > 1 or _reaches_transposes(node, graph, consumers)):
        return None
    (perm,) = perms
    return perm


def _is_free(node: Node, moved: set[str], graph: Graph) -> bool:
    """Whether every operand is one of `moved`, or can have its dimensions in any order."""
    rank = len(graph.types[node.outputs[0]].shape)
    for x in node.inputs:
        if not x:
            continue
        type_ = graph.types[x]
        fits = x in graph.constants or (type_.size == 1 and len(type_.shape) <= rank)
        if x in moved:
            fits = len(type_.shape) == rank
        if not fits:
            return False
    return True


def _reaches_transposes(node: Node, graph: Graph, consumers: Mapping[str, tuple[Node, ...]]) -> bool:
    """Whether only transposes read the node's output, directly or through more element-wise operators."""
    for _ in range(_MAX_CHAIN):
        y = node.outputs[0]
        readers = consumers.get(y, ())
        if y in graph.outputs or not readers:
            return False
        if all(reader.op == "Transpose" for reader in readers):
            return True
        if len(readers) > 1 or readers[0].op not in ELEMENTWISE or not _is_free(readers[0], {y}, graph):
            return False
        node = readers[0]
    return False


def _operand_before(
    node: Node, i: int, perm: tuple[int, ...], graph: Graph, constants: dict[str, np.ndarray]
) -> str:
    """Operand i before a transpose by `perm`: the source tensor, or a constant in another order."""
    x = node.inputs[i]
    if not x or graph.types[x].size == 1:
        return x
    value = graph.constants[x]
    aligned = value.reshape((1,) * (len(perm) - value.ndim) + value.shape)
    name = unused_name(graph, f"{node.outputs[0]}.operand{i}")
    constants[name] = np.ascontiguousarray(aligned.transpose(np.argsort(perm)))
    return name


def _type_before(type_: TensorType, perm: tuple[int, ...]) -> TensorType:
    shape = [0] * len(perm)
    for n, axis in zip(type_.shape, perm, strict=True):
        shape[axis] = n
    return TensorType(type_.dtype, tuple(shape))


def _moves_nothing(node: Node, graph: Graph) -> bool:
    """Whether the dimensions longer than 1 keep their order."""
    shape = graph.types[node.inputs[0]].shape
    order = [axis for axis in permutation(node, graph) if shape[axis] != 1]
    return order == sorted(order)
