"""Pass `channels_last`: run convolutions and the operators between them with channels last.

In this layout a convolution's input is already a matrix, and pooling and every epilogue run along channels.
Images are transposed where they enter and leave such a region, except those of few channels, which their
convolution transposes; element-wise operators, pooling and concatenation extend the region. Contract: the
same values; inputs, outputs and all other operators keep their layout.
"""

from dataclasses import replace

import numpy as np

from pliant.compiler.rewrite.rewrite import rebuild_graph, unused_name
from pliant.compiler.rules.conv.lower_conv import is_first_layer, takes_either_layout
from pliant.compiler.rules.onnx_elementwise import expression
from pliant.ir.graph import Graph, Node, TensorType

_RESIZES = ("Resize", "Upsample")
_POOLS = ("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")


def channels_last(graph: Graph) -> Graph:
    """The graph with regions around convolutions in channels-last layout."""
    if not any(_is_conv(graph, node) for node in graph.nodes):
        return graph
    builder = _ChannelsLastBuilder(graph)
    for node in graph.nodes:
        builder.add(node)
    for y in graph.outputs:
        builder.plain(y)
    return rebuild_graph(graph, builder.nodes, builder.constants, builder.types)


def _is_conv(graph: Graph, node: Node) -> bool:
    """A convolution that does not name its layouts and gains from channels last."""
    if node.op not in ("Conv", "FusedConv") or "x_layout" in node.attributes:
        return False
    return graph.types[node.inputs[0]].dtype == "float32" and 0 not in graph.types[node.outputs[0]].shape


class _ChannelsLastBuilder:
    """The new graph under construction: `last` names the channels-last form of tensors that have one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.last: dict[str, str] = {}
        self.made = {*graph.inputs, *graph.constants}
        self.readers = graph.consumers

    def add(self, node: Node) -> None:
        """Add the node in the layout that suits it."""
        if _is_conv(self.graph, node) and not self._stays_first(node):
            x, w, *rest = node.inputs
            for name in (w, *rest[:1]):
                if name:
                    self.plain(name)  # kernels read weights and biases in one layout only
            is_first = x not in self.last and is_first_layer(node, self.graph)
            inputs = [
                x if is_first else self.transposed(x),
                w,
                *rest[:1],
                *(self.transposed(r) for r in rest[1:]),
            ]
            self._emit(node, inputs, x_layout="nchw" if is_first else "nhwc", y_layout="nhwc")
            self.nodes[-1] = replace(self.nodes[-1], op="FusedConv")
        elif node.op in _POOLS and node.inputs[0] in self.last and len(node.outputs) == 1:
            self._emit(node, [self.transposed(node.inputs[0])], layout="nhwc")
        elif node.op in _RESIZES and self._resizes_last(node):
            self._emit(node, [self.transposed(node.inputs[0]), *node.inputs[1:]], layout="nhwc")
        elif self._carries(node):
            rank = len(self.graph.types[node.outputs[0]].shape)
            self._emit(node, [self._operand(x, rank) for x in node.inputs])
        elif node.op == "Concat" and self._joins_channels(node):
            axis = len(self.graph.types[node.inputs[0]].shape) - 1
            self._emit(node, [self.transposed(x) for x in node.inputs], axis=axis)
        else:
            for x in node.inputs:
                if x:
                    self.plain(x)
            self.nodes.append(node)
            self.made.update(node.outputs)

    def _stays_first(self, node: Node) -> bool:
        """A convolution between channels-first images whose kernel reads them in that layout."""
        is_read_last = any(_is_conv(self.graph, reader) for reader in self.readers.get(node.outputs[0], ()))
        return node.inputs[0] not in self.last and not is_read_last and takes_either_layout(node, self.graph)

    def transposed(self, x: str) -> str:
        """The channels-last form of a tensor, transposed if there is none yet."""
        if x not in self.last:
            name = self._name(x)
            rank = len(self.graph.types[x].shape)
            self.nodes.append(Node("Transpose", (x,), (name,), {"perm": (0, *range(2, rank), 1)}, name))
            self.last[x] = name
        return self.last[x]

    def plain(self, x: str) -> None:
        """Make sure that a tensor exists in the graph's original layout."""
        if x in self.made:
            return
        rank = len(self.graph.types[x].shape)
        self.nodes.append(
            Node("Transpose", (self.last[x],), (x,), {"perm": (0, rank - 1, *range(1, rank - 1))}, x)
        )
        self.made.add(x)

    def _emit(self, node: Node, inputs: list[str], **more: str | int) -> None:
        y = node.outputs[0]
        self.last[y] = self._name(y)
        attributes = {**node.attributes, **more}
        self.nodes.append(Node(node.op, tuple(inputs), (self.last[y],), attributes, node.name))

    def _name(self, x: str) -> str:
        name = unused_name(self.graph, f"{x}.last")
        type_ = self.graph.types[x]
        self.types[name] = TensorType(type_.dtype, (type_.shape[0], *type_.shape[2:], type_.shape[1]))
        return name

    def _carries(self, node: Node) -> bool:
        """An element-wise operator with one channels-last operand, whose others can be converted at no cost.

        An operand of fewer pixels, such as weights of an image's channels, has the result's rank.
        """
        if len(node.outputs) != 1:
            return False
        shape = self.graph.types[node.outputs[0]].shape
        transposed = [self.graph.types[x].shape for x in node.inputs if x in self.last]
        if shape not in transposed or any(len(s) != len(shape) for s in transposed):
            return False
        others = [x for x in node.inputs if x and x not in self.last]
        return all(self._is_easy(x, len(shape)) for x in others) and expression(node, self.graph) is not None

    def _resizes_last(self, node: Node) -> bool:
        """Whether a resized image stays channels-last: an enlarged one only if it need not be transposed
        back.
        """
        x, y = node.inputs[0], node.outputs[0]
        if x not in self.last or any(i and i not in self.graph.constants for i in node.inputs[1:]):
            return False
        if self.graph.types[y].size <= self.graph.types[x].size:
            return True
        readers = self.readers.get(y, ())
        return y not in self.graph.outputs and bool(readers) and all(map(self._reads_last, readers))

    def _reads_last(self, node: Node) -> bool:
        return (
            _is_conv(self.graph, node)
            or node.op in (*_POOLS, *_RESIZES)
            or expression(node, self.graph) is not None
            or (node.op == "Concat" and self._is_of_channels(node))
        )

    def _is_of_channels(self, node: Node) -> bool:
        return node.integer("axis", 0) % len(self.graph.types[node.outputs[0]].shape) == 1

    def _is_easy(self, x: str, rank: int) -> bool:
        """One number, or a constant that can be transposed."""
        type_ = self.graph.types[x]
        return type_.size == 1 or (x in self.graph.constants and len(type_.shape) <= rank)

    def _operand(self, x: str, rank: int) -> str:
        """An input of an element-wise operator of this rank, channels last."""
        if not x or x in self.last:
            return x and self.last[x]
        array = self.graph.constants.get(x)
        if array is None or array.size == 1:
            self.plain(x)
            return x
        name = unused_name(self.graph, f"{x}.last{len(self.constants)}")
        whole = array.reshape((1,) * (rank - array.ndim) + array.shape)
        self.constants[name] = np.ascontiguousarray(np.moveaxis(whole, 1, -1))
        return name

    def _joins_channels(self, node: Node) -> bool:
        return self._is_of_channels(node) and all(x in self.last for x in node.inputs)
