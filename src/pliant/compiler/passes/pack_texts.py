"""Run row-wise operators over the concatenated rows of several texts, without their padding.

Contract: the graph is of `n_texts` texts padded to `n_tokens`, in tensors [n_texts, n_tokens, ...]. Products
with constant matrices, norms of columns, and attention run over the real rows of the texts; all other
operators run as before. The results for real rows equal those of a mask that hides padding; padding rows hold
a copy of a real row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.rewrite.rewrite import rebuild_graph
from pliant.compiler.rewrite.view import View, input_view
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.attention import attention
from pliant.kernels.attention.attention_texts import BLOCK_WORDS, text_blocks
from pliant.kernels.emit.isa import Isa

ROWS, PLACES, BLOCKS = "texts|rows", "texts|places", "texts|blocks"
"""Inputs of a packed graph, int64: the padded index of each real row, the packed index of each padded row (0
for padding), and the blocks of `text_blocks`.
"""

_PACKED = "|packed"


@dataclass(frozen=True, slots=True)
class TextShape:
    """Texts padded to one length."""

    n_texts: int
    n_tokens: int

    def feeds(self, lengths: Sequence[int], isa: Isa) -> dict[str, Int64[np.ndarray, "..."]]:
        """The feeds of a packed graph in addition to its model's inputs, for texts of these lengths."""
        real = np.arange(self.n_tokens) < np.asarray(lengths)[:, None]
        rows, places = np.zeros((2, real.size), np.int64)
        where = np.flatnonzero(real)
        rows[: len(where)] = where
        places[where] = np.arange(len(where))
        blocks = np.zeros((self._n_blocks(isa), BLOCK_WORDS), np.int64)
        there = text_blocks(tuple(lengths), isa)
        blocks[: len(there)] = there
        return {ROWS: rows, PLACES: places, BLOCKS: blocks}

    def types(self, isa: Isa) -> dict[str, TensorType]:
        """Types of these feeds."""
        every = TensorType("int64", (self.n_texts * self.n_tokens,))
        return {
            ROWS: every,
            PLACES: every,
            BLOCKS: TensorType("int64", (self._n_blocks(isa), BLOCK_WORDS)),
        }

    def _n_blocks(self, isa: Isa) -> int:
        return self.n_texts * attention.blocks(self.n_tokens, isa)


def pack_texts(graph: Graph, texts: TextShape, isa: Isa) -> Graph:
    """The packed graph, whose calls with an extent run over fewer rows; `graph` itself if that gains nothing,
    because it has no such products or no text attends to itself.
    """
    packed = _TextPacker(graph, texts)
    nodes = list(packed.nodes())
    ops = {node.op for node in nodes if node.flag("extent")}
    if "SelfAttention" not in ops or not ops & {"MatMul", "FusedMatMul"}:
        return graph
    types = {x + _PACKED: t for x, t in graph.types.items()} | texts.types(isa)
    more = tuple(texts.types(isa))
    found = rebuild_graph(
        replace(graph, inputs=(*graph.inputs, *more), types={**graph.types, **types}), nodes
    )
    origins = {x + _PACKED: origin for x, origin in graph.origins.items()}
    return replace(found, origins={**origins, **graph.origins})


def attend_by_text(graph: Graph) -> Graph:
    """The graph of one text's rows for several texts with as many rows together, each of which attends to
    itself; its calls of attention have an extent. `graph` itself if nothing in it attends.
    """
    used = [node for node in graph.nodes if node.op == "FusedAttention"]
    if not used:
        return graph
    n_rows = max(input_view(graph, node.inputs[0], node.integers("q_view", None)).shape[2] for node in used)
    nodes = [_by_text(node) if node in used else node for node in graph.nodes]
    types = {**graph.types, BLOCKS: TensorType("int64", (n_rows, BLOCK_WORDS))}
    return rebuild_graph(replace(graph, inputs=(*graph.inputs, BLOCKS), types=types), nodes)


def _by_text(node: Node) -> Node:
    inputs = (*node.inputs[:3], BLOCKS, *node.inputs[3:])
    return replace(node, op="SelfAttention", inputs=inputs, attributes={**node.attributes, "extent": 1})


@final
class _TextPacker:
    """One walk over the nodes of a graph. A tensor `x` that is packed has the name `x|packed`."""

    def __init__(self, graph: Graph, texts: TextShape) -> None:
        self._graph, self._texts = graph, texts
        self._packed: set[str] = set()
        """Tensors that exist without padding."""
        self._padded = {*graph.inputs, *graph.constants}
        """Tensors that exist with padding."""

    def nodes(self) -> Iterator[Node]:
        """The nodes of the packed graph, in order."""
        for node in self._graph.nodes:
            rows = self._rows_of(node)
            if rows is None:
                yield from self._unpack(node.inputs)
                yield node
                self._padded.update(node.outputs)
                continue
            yield from self._unpack([x for x in node.inputs if x not in rows])
            yield from self._pack(rows)
            inputs = tuple(x + _PACKED if x in rows else x for x in node.inputs)
            op = node.op
            if op == "FusedAttention":
                op, inputs = "SelfAttention", (*inputs[:3], BLOCKS, *inputs[3:])
            outputs = tuple(y + _PACKED for y in node.outputs)
            yield Node(op, inputs, outputs, {**node.attributes, "extent": 1}, node.name)
            self._packed.update(node.outputs)
        yield from self._unpack(self._graph.outputs)

    def _pack(self, tensors: Sequence[str]) -> Iterator[Node]:
        for x in dict.fromkeys(tensors):
            if x not in self._packed:
                self._packed.add(x)
                yield Node("TakeRows", (x, ROWS), (x + _PACKED,), {"extent": 1}, f"{x}, packed")

    def _unpack(self, tensors: Sequence[str]) -> Iterator[Node]:
        for x in dict.fromkeys(tensors):
            if x and x not in self._padded:
                self._padded.add(x)
                yield Node("TakeRows", (x + _PACKED, PLACES), (x,), {}, f"{x}, padded")

    def _rows_of(self, node: Node) -> tuple[str, ...] | None:
        """The inputs of a node that are rows of texts, if it works row by row; None otherwise."""
        match node.op:
            case "MatMul" | "FusedMatMul":
                return self._of_product(node)
            case "LayerNormalization":
                return self._of_norm(node)
            case "FusedAttention":
                return self._of_attention(node)
            case _:
                return None

    def _of_product(self, node: Node) -> tuple[str, ...] | None:
        a, b, bias, residual = (*node.inputs, "", "")[:4]
        matrix = self._graph.constants.get(b)
        rows = (a, residual) if residual else (a,)
        is_fixed = matrix is not None and len(self._view(node, b, "b_view").shape) == 2
        is_fixed &= not bias or bias in self._graph.constants
        views = [self._view(node, a, "a_view"), self._view(node, node.outputs[0], "y_view")]
        is_even = all(self._is_rows(view) for view in views) and all(
            map(self._is_text, (*rows, node.outputs[0]))
        )
        return rows if is_fixed and is_even else None

    def _of_norm(self, node: Node) -> tuple[str, ...] | None:
        x, *affine = node.inputs
        columns = self._graph.types[x].shape[-1:]
        is_plain = self._is_text(x) and "x_view" not in node.attributes and len(node.outputs) == 1
        is_plain &= all(
            a in self._graph.constants and a and self._graph.types[a].shape == columns for a in affine
        )
        # Packing rows before the first product gains nothing.
        return (x,) if is_plain and x in self._packed else None

    def _of_attention(self, node: Node) -> tuple[str, ...] | None:
        qkv = node.inputs[:3]
        if node.integer("group", 1) != 1 or not all(map(self._is_text, (*qkv, node.outputs[0]))):
            return None
        views = [self._view(node, x, f"{name}_view") for name, x in zip("qkv", qkv, strict=True)]
        views.append(self._view(node, node.outputs[0], "y_view"))
        is_even = all(
            len(v.shape) == 4
            and v.shape == views[0].shape
            and (v.shape[0], v.shape[2]) == (self._texts.n_texts, self._texts.n_tokens)
            and v.strides[0] == v.shape[2] * v.strides[2]
            for v in views
        )
        return qkv if is_even else None

    def _view(self, node: Node, x: str, attribute: str) -> View:
        return input_view(self._graph, x, node.integers(attribute, None))

    def _is_text(self, x: str) -> bool:
        """Whether a tensor is float32 [n_texts, n_tokens, ...] and not a constant."""
        type_, texts = self._graph.types[x], self._texts
        is_even = type_.dtype == "float32" and type_.shape[:2] == (texts.n_texts, texts.n_tokens)
        return is_even and x not in self._graph.constants

    def _is_rows(self, view: View) -> bool:
        """Whether a view is [n_texts, n_tokens, columns] with equally spaced rows."""
        lead = self._texts.n_texts, self._texts.n_tokens
        return (
            len(view.shape) == 3 and view.shape[:2] == lead and view.strides[0] == lead[1] * view.strides[1]
        )
