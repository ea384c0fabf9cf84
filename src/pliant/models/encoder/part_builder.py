"""A part of an encoder as a graph with named, unread weights.

The same part runs in every layer: its weights are pieces of tensors whose names omit the layer; binding it to
a layer reads the arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pliant.arrays import Float32
from pliant.errors import ModelError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.models.encoder.encoder_spec import LinearSpec, NormSpec
from pliant.models.spec import Activation

TensorReader = Callable[[str], np.ndarray]
"""Returns the tensor of a canonical name, in the floating-point type in which it is stored."""

_ACTIVATIONS: Mapping[Activation, tuple[str, Mapping[str, Attribute]]] = {
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
}


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Heads, rows or columns from `start` up to but not including `stop`; at least one."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.stop, f"nothing lies from {self.start} to {self.stop}"

    @property
    def n(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class WeightBlock:
    """Some rows of a tensor, and of a matrix some columns. Where `name` is None they are zeros."""

    name: str | None
    rows: IndexRange
    columns: IndexRange | None = None


@dataclass(frozen=True, slots=True)
class WeightPiece:
    """Blocks of equal width, stacked along rows: the weight of one product, [out, in] or [out].

    `tail` are the dimensions after the rows of a tensor that is cut along its rows only.
    """

    blocks: tuple[WeightBlock, ...]
    tail: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        columns = self.blocks[0].columns
        rows = sum(block.rows.n for block in self.blocks)
        return (rows, *self.tail) if columns is None else (rows, columns.n)

    def read(self, read: TensorReader, prefix: str = "") -> Float32[np.ndarray, "..."]:
        """The values, from tensors whose names start with `prefix`: a view if the piece is one float32 block.

        Raises ModelError naming the tensor that holds NaN or infinity there.
        """
        found = [_values(block, read, prefix) for block in self.blocks]
        return found[0] if len(found) == 1 else np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderPart:
    """Operators over typed tensors, and the `pieces` of weights among their inputs.

    A piece's name in the graph states its rows and columns, so equal names in the same layer mean equal
    values. `constants` are small and the same in every layer.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    pieces: Mapping[str, WeightPiece]
    constants: Mapping[str, np.ndarray]

    def graph(self, read: TensorReader, layer: int | None = None) -> Graph:
        """The part with the weights of `layer`, or with None those of the input and the head.

        Arrays may be views of the results of `read`; do not modify them. Raises what `read` raises.
        """
        prefix = "" if layer is None else f"layers.{layer}."
        values = {name: piece.read(read, prefix) for name, piece in self.pieces.items()}
        return Graph(
            self.nodes, self.inputs, self.outputs, self.types, {**self.constants, **values}, self.name
        )


@dataclass(slots=True)
class PartBuilder:
    """Builds a part; each method returns the name of the tensor that it makes."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    pieces: dict[str, WeightPiece] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, shape)
        return name

    def node(
        self,
        op: str,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        label: str = "",
        /,
        **attributes: Attribute,
    ) -> str:
        """float32 `shape` = op(inputs)."""
        y = f"{label or op}.{len(self.nodes)}"
        self.types[y] = TensorType("float32", shape)
        self.nodes.append(Node(op, inputs, (y,), attributes, y))
        return y

    def shape(self, x: str) -> tuple[int, ...]:
        return self.types[x].shape

    def piece(self, name: str, piece: WeightPiece) -> str:
        self.pieces[name] = piece
        self.types[name] = TensorType("float32", piece.shape)
        return name

    def weight(self, name: str, *shape: int, rows: IndexRange | None = None) -> str:
        """A whole tensor of `shape`, or some of its rows."""
        return self.piece(name, WeightPiece((WeightBlock(name, rows or IndexRange(0, shape[0])),), shape[1:]))

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = value
        self.types[name] = TensorType(str(value.dtype), value.shape)
        return name

    def linear(
        self, x: str, linear: LinearSpec, rows: IndexRange | None = None, columns: IndexRange | None = None
    ) -> str:
        """x [m, in] times some output rows of the weight (`rows`), with bias; or times some inputs, without
        bias.
        """
        return self.linear_stack(x, (linear,), rows, columns)

    def linear_stack(
        self,
        x: str,
        linears: tuple[LinearSpec, ...],
        rows: IndexRange | None = None,
        columns: IndexRange | None = None,
    ) -> str:
        """x times the same rows of several weights, the results concatenated by columns."""
        n_in = linears[0].n_in
        spans = [rows or IndexRange(0, one.n_out) for one in linears]
        width = columns or IndexRange(0, n_in)
        label = "+".join(one.name for one in linears)
        blocks = [WeightBlock(f"{one.name}.weight", s, width) for one, s in zip(linears, spans, strict=True)]
        weight = self.piece(_weight_name(label, "weight", spans, width), WeightPiece(tuple(blocks)))
        inputs: tuple[str, ...] = (x, weight)
        if columns is None and any(one.has_bias for one in linears):
            names = [f"{one.name}.bias" if one.has_bias else None for one in linears]
            biases = [WeightBlock(name, s) for name, s in zip(names, spans, strict=True)]
            inputs += (self.piece(_weight_name(label, "bias", spans), WeightPiece(tuple(biases))),)
        return self.node("Gemm", inputs, (self.shape(x)[0], sum(s.n for s in spans)), label, transB=1)

    def bias(self, x: str, linear: LinearSpec, rows: IndexRange | None = None) -> str:
        """x plus (part of) the bias of a product that was summed without it."""
        if not linear.has_bias:
            return x
        span = rows or IndexRange(0, linear.n_out)
        name = _weight_name(linear.name, "bias", [span])
        return self.add(x, self.piece(name, WeightPiece((WeightBlock(f"{linear.name}.bias", span),))))

    def add(self, x: str, y: str) -> str:
        return self.node("Add", (x, y), self.shape(x))

    def norm(self, x: str, norm: NormSpec) -> str:
        """A norm over the last axis."""
        weight, bias = (self.weight(f"{norm.name}.{part}", norm.n) for part in ("weight", "bias"))
        if norm.kind == "affine":
            return self.add(self.node("Mul", (x, weight), self.shape(x), norm.name), bias)
        inputs = (x, weight, bias)
        return self.node("LayerNormalization", inputs, self.shape(x), norm.name, axis=-1, epsilon=norm.eps)

    def activate(self, x: str, activation: Activation) -> str:
        op, attributes = _ACTIVATIONS[activation]
        return self.node(op, (x,), self.shape(x), **attributes)

    def rows(self, x: str, start: int, stop: int) -> str:
        """Rows `start` up to `stop` of x [rows, columns]."""
        bounds = {"from": start, "to": stop, "axis": 0}
        made = [
            self.constant(f"{part}.{len(self.nodes)}", np.array([n], np.int64)) for part, n in bounds.items()
        ]
        return self.node("Slice", (x, *made), (stop - start, *self.shape(x)[1:]))

    def row(self, x: str, i: int) -> str:
        return self.rows(x, i, i + 1)

    def mean(self, x: str) -> str:
        """The mean over the rows, as [1, columns]."""
        axis = self.constant(f"axis.{len(self.nodes)}", np.array([0], np.int64))
        return self.node("ReduceMean", (x, axis), (1, *self.shape(x)[1:]), keepdims=1)

    def unit(self, x: str) -> str:
        """A row divided by its Euclidean norm, or by 1e-12 if the norm is smaller."""
        axis = self.constant(f"axis.{len(self.nodes)}", np.array([1], np.int64))
        length = self.node("ReduceL2", (x, axis), (1, 1), keepdims=1)
        least = self.constant("least", np.array([[1e-12]], np.float32))
        return self.node("Div", (x, self.node("Max", (length, least), (1, 1))), self.shape(x))

    def reshape(self, x: str, *shape: int) -> str:
        wanted = self.constant(f"shape.{len(self.nodes)}", np.array(shape, np.int64))
        return self.node("Reshape", (x, wanted), shape)

    def part(self, **outputs: str) -> EncoderPart:
        """The finished part, with the given output names."""
        names = {x: name for name, x in outputs.items()}
        assert len(names) == len(outputs), f"{self.name} gives one tensor twice: {outputs}"
        nodes = tuple(
            replace(
                node,
                inputs=tuple(names.get(x, x) for x in node.inputs),
                outputs=tuple(names.get(y, y) for y in node.outputs),
            )
            for node in self.nodes
        )
        types = {names.get(x, x): type_ for x, type_ in self.types.items()}
        return EncoderPart(
            self.name, nodes, tuple(self.inputs), tuple(outputs), types, self.pieces, self.constants
        )


def _values(block: WeightBlock, read: TensorReader, prefix: str) -> np.ndarray:
    if block.name is None:
        return np.zeros(block.rows.n, np.float32)
    whole = read(prefix + block.name)
    values = whole[block.rows.start : block.rows.stop]
    if block.columns is not None:
        values = values[:, block.columns.start : block.columns.stop]
    values = values.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise ModelError(
            f"{prefix}{block.name} holds NaN or infinity among rows {block.rows.start} to "
            f"{block.rows.stop - 1}; the model is damaged or its training diverged."
        )
    return values


def _weight_name(label: str, kind: str, rows: list[IndexRange], columns: IndexRange | None = None) -> str:
    spans = ";".join(f"{s.start}:{s.stop}" for s in rows)
    across = "" if columns is None else f",{columns.start}:{columns.stop}"
    return f"{label}.{kind}[{spans}{across}]"
