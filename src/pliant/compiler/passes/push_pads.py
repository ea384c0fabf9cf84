"""Pass `pads`: move a Pad that views read in front of the transposes before it.

Contract: the same elements; no more transposes than before. A transpose between a product and its input is a
view (see `rewrite/trace_views.py`), unless a Pad follows it: an exporter's unfold pads a transposed image and
gathers windows from it. If the image is padded first, these windows are views as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pliant.compiler.passes.reshapes import RESHAPING
from pliant.compiler.passes.transposes import permutation
from pliant.compiler.rewrite.pattern import GraphContext
from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.compiler.rewrite.trace_views import STEPS
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.ir.symbolic import size_array


def push_pads(graph: Graph) -> Graph:
    """The graph in which such pads come first and the transposes follow them."""
    context = GraphContext(graph)
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    types: dict[str, TensorType] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        chain = _chain(context, node)
        pads = _pads_before(graph, node, chain)
        if pads is None:
            nodes.append(node)
            continue
        gone |= {part.outputs[0] for part in chain}
        nodes += _swap_order(graph, node, chain, pads, constants, types)
    if not gone:
        return graph
    return rebuild_graph(graph, [node for node in nodes if node.outputs[0] not in gone], constants, types)


def _swap_order(
    graph: Graph,
    pad: Node,
    chain: Sequence[Node],
    pads: np.ndarray,
    constants: dict[str, np.ndarray],
    types: dict[str, TensorType],
) -> Iterator[Node]:
    """A pad of the chain's input, then the chain; adds new entries to `constants` and `types`."""
    x, y = chain[0].inputs[0], pad.outputs[0]
    type_ = graph.types[x]
    made, amounts = unused_name(graph, f"{y}.rows"), unused_name(graph, f"{y}.pads")
    shape = tuple(n + int(a) + int(b) for n, a, b in zip(type_.shape, *pads, strict=True))
    constants[amounts], types[made] = pads.reshape(-1), replace(type_, shape=shape)
    yield replace(pad, inputs=(x, amounts, *pad.inputs[2:]), outputs=(made,))
    for part in chain:
        before, made = made, y if part is chain[-1] else unused_name(graph, f"{part.outputs[0]}.padded")
        if part.op == "Transpose":
            shape = tuple(shape[d] for d in permutation(part, graph))
            yield replace(part, inputs=(before,), outputs=(made,))
        else:
            rest = iter(n for n in shape if n != 1)
            shape = tuple(1 if n == 1 else next(rest) for n in graph.types[part.outputs[0]].shape)
            wanted = unused_name(graph, f"{made}.shape")
            constants[wanted] = size_array(shape)
            attributes: dict[str, Attribute] = {"allowzero": 1}
            yield replace(part, op="Reshape", inputs=(before, wanted), outputs=(made,), attributes=attributes)
        types[made] = replace(type_, shape=shape)


def _chain(context: GraphContext, pad: Node) -> tuple[Node, ...]:
    """The nodes from the first transpose before a pad up to the pad, if only views read the pad."""
    graph = context.graph
    readers = context.consumers.get(pad.outputs[0], ())
    is_viewed = (
        readers and all(reader.op in STEPS for reader in readers) and pad.outputs[0] not in graph.outputs
    )
    chain: list[Node] = []
    x = pad.inputs[0] if pad.op == "Pad" and is_viewed else ""
    while (node := context.maker(x, "Transpose", *RESHAPING)) is not None and context.reader(x) is not None:
        if node.op != "Transpose" and _without_ones(graph, x) != _without_ones(graph, node.inputs[0]):
            break
        chain.insert(0, node)
        x = node.inputs[0]
    while chain and chain[0].op != "Transpose":
        chain.pop(0)
    return tuple(chain)


def _pads_before(graph: Graph, pad: Node, chain: Sequence[Node]) -> np.ndarray | None:
    """Elements before and after [2, rank] for the chain's input, None if it cannot be padded.

    A dimension that a reshape inserted cannot be padded.
    """
    pads = graph.constants.get(pad.inputs[1]) if chain else None
    has_axes = len(pad.inputs) > 3 and bool(pad.inputs[3])
    if pads is None or has_axes or pad.text("mode", "constant") != "constant":
        return None
    rank = len(graph.types[chain[0].inputs[0]].shape)
    dims: list[int | None] = list(range(rank))
    for node in chain:
        if node.op == "Transpose":
            dims = [dims[d] for d in permutation(node, graph)]
            continue
        shape = graph.types[node.inputs[0]].shape
        rest = iter(d for d, n in zip(dims, shape, strict=True) if n != 1)
        dims = [None if n == 1 else next(rest) for n in graph.types[node.outputs[0]].shape]
    found = np.zeros((2, rank), np.int64)
    for d, amounts in zip(dims, pads.reshape(2, -1).T, strict=True):
        if d is not None:
            found[:, d] = amounts
        elif amounts.any():
            return None
    return found


def _without_ones(graph: Graph, x: str) -> list[int]:
    return [n for n in graph.types[x].shape if n != 1]
