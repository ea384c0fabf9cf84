"""A BERT-family model as graphs: its embedding, a layer at any width, its head.

Weights are inputs: the session owns them and passes their addresses. A coded matrix is passed as `slices`,
the descriptors of its slices. Operators are pliant's own (see compile.lower.coded), and those with the
attribute `extent` may run over fewer rows than their tensors have.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, assert_never

from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.models.slice_shapes import GROUP_COLUMNS, MatrixGeometry, padded_size, slice_geometry
from pliant.models.spec import Activation, ModelSpec, Precision

ComputeDtype = Literal["fp32", "bf16", "int8"]
"""The operands of products: float32, both sides rounded to bfloat16, or both quantized to int8. Sums are
float32 for the first two, and exact integers for the last.
"""
TableFormat = Literal["codes", "F32", "F16", "BF16"]

SUMS_HEADER = 16
"""int32 before a layer's column sums; the first is 0 where they are to be computed."""
DESCRIPTOR_WORDS = 12
"""64-bit words that describe a slice."""
BLOCK_WORDS = 4
"""64-bit words that describe a block of a text's rows."""

_TABLE_DTYPES: dict[Precision, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def layer_graph(spec: ModelSpec, width: int, tokens: int, compute: ComputeDtype = "fp32") -> Graph:
    """One layer's leading `width` slices over up to `tokens` rows: `hidden` float32 [tokens, d] to `out`.

    The rows are those of one or more texts, as `blocks` says (kernels/attention/attention_texts.py). Inputs
    are `hidden`, `blocks`, `slices`, the biases `qkv_bias`, `output_bias`, `up_bias`, `down_bias`, the norms
    `attention_norm.weight`, `.bias`, `output_norm.weight`, `.bias`, and for int8 `step`, the layer's own, and
    `sums` int32 [n_sums], a header and the sums of the columns of its matrices, which the layer writes if the
    header says so.
    """
    geometry = slice_geometry(spec)
    qkv, output, up, down = geometry.matrices
    d, h, n = geometry.hidden, geometry.head_dim, width
    g = _GraphBuilder(f"layer x{width}", compute)
    g.add_input("hidden", (tokens, d))
    g.add_input("blocks", (tokens, BLOCK_WORDS), "int64")
    g.add_input("slices", (spec.n_heads, DESCRIPTOR_WORDS), "uint64")
    if compute == "int8":
        g.add_input("step", (1,))
        g.add_input("sums", (n_sums(spec),), "int32")
    g.multiply("qkv", qkv, n, "hidden", (tokens, n * 3 * h))
    views = _heads(n, tokens, h) | {"y_view": (0, 1, n, tokens, h, tokens * n * h, h, n * h, 1)}
    scale = 1 / sqrt(spec.head_dim)
    g.add(
        "SelfAttention", "attended", (1, tokens, n, h), ("qkv", "qkv", "qkv", "blocks"), scale=scale, **views
    )
    g.multiply("output", output, n, "attended", (tokens, d), residual="hidden")
    g.normalise("attention_norm", "output", "normed", spec.hidden, spec.norm_eps)
    g.multiply("up", up, n, "normed", (tokens, n * geometry.slice_ffn), activation=spec.activation)
    g.multiply("down", down, n, "up", (tokens, d), residual="normed")
    g.normalise("output_norm", "down", "out", spec.hidden, spec.norm_eps)
    return g.graph("out")


def n_sums(spec: ModelSpec) -> int:
    """The int32 of `sums` of a layer: a header and a sum for every column at full width."""
    qkv, output, up, down = slice_geometry(spec).matrices
    return SUMS_HEADER + spec.n_heads * (qkv.columns + up.columns) + output.columns + down.columns


def embedding_graph(spec: ModelSpec, word: TableFormat, tokens: int) -> Graph:
    """Token ids to the first layer's input: `ids` and `types` int32 [tokens] to `out` float32 [tokens, d].

    Inputs are the tables `word` (stored as `word` says, with `codebook` for codes), `position`, `type`
    where the model has token types, the norm, and ELECTRA's projection `project.slices`, `project.bias`.
    """
    g = _GraphBuilder("embedding")
    E, d = spec.embedding, padded_size(spec.hidden)
    g.add_input("ids", (tokens,), "int32")
    g.add_input("types", (tokens,), "int32")
    if word == "codes":
        g.add_input("word", (spec.vocab, 6, -(-E // 8)), "uint8")
        g.add_input("codebook", (64,))
    else:
        g.add_input("word", (spec.vocab, E), _TABLE_DTYPES[word])
    g.add_input("position", (spec.max_tokens + spec.position_offset, E))
    if spec.n_types:
        g.add_input("type", (spec.n_types, E))
    tables = ("word", "codebook" if word == "codes" else "", "position", "type" if spec.n_types else "")
    read = {"word": word, "columns": E, "first_position": spec.position_offset}
    g.add("EmbedTokens", "sum", (tokens, padded_size(E)), ("ids", "types", *tables), **read)
    if spec.hidden == E:
        g.normalise("norm", "sum", "out", E, spec.norm_eps)
        return g.graph("out")
    g.normalise("norm", "sum", "normed", E, spec.norm_eps)
    g.add_linear("project", "normed", "out", (tokens, d), extent=1)
    return g.graph("out")


def head_graph(spec: ModelSpec, tokens: int) -> Graph:
    """The last layer's tokens, `hidden` float32 [tokens, d], to `answer` float32 [1, padded columns].

    The answer is logits, or the pooled vector of an embedding model before normalisation. Inputs are
    `hidden`, and `slices` and `bias` of `dense` and `classifier` where the head has them.
    """
    head, d = spec.head, padded_size(spec.hidden)
    g = _GraphBuilder("head")
    g.add_input("hidden", (tokens, d))
    x = "answer" if head.dense is None and head.labels is None else "pooled"
    g.add("PoolRows", x, (1, d), ("hidden",), mode=head.pooling)
    if head.dense is not None:
        y = "answer" if head.labels is None else "dense"
        g.add_linear("dense", x, y, (1, d), activation=head.dense)
        x = y
    if head.labels is not None:
        g.add_linear("classifier", x, "answer", (1, padded_size(len(head.labels))))
    return g.graph("answer")


@dataclass(slots=True)
class _GraphBuilder:
    """Builds a graph."""

    name: str
    compute: ComputeDtype = "fp32"
    inputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    sums_at: int = SUMS_HEADER

    def add_input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, shape)

    def add(
        self, op: str, y: str, shape: tuple[int, ...], inputs: tuple[str, ...], **attributes: Attribute
    ) -> None:
        """`y` float32 = op(inputs); with `extent` 1 (the tokens) unless another is given."""
        self.types[y] = TensorType("float32", shape)
        self.nodes.append(Node(op, inputs, (y,), {"extent": 1, **attributes}, y))

    def multiply(
        self,
        name: str,
        matrix: MatrixGeometry,
        width: int,
        a: str,
        shape: tuple[int, int],
        *,
        residual: str = "",
        activation: Activation | None = None,
    ) -> None:
        """One of a layer's matrices: qkv and up are cut along their columns, output and down along rows."""
        self.add_input(f"{name}_bias", (shape[1],))
        segments = 1 if matrix.name in ("qkv", "up") else width
        attributes = _product(matrix.rows, matrix.columns, segments, activation)
        attributes |= {"first_group": matrix.first_group, "first_column_group": matrix.first_column_group}
        rest = ("slices", f"{name}_bias", residual)
        q, scales = f"{name}.q", f"{name}.scales"
        tokens, depth = shape[0], matrix.rows * segments
        match self.compute:
            case "fp32":
                self.add("CodedMatMul", name, shape, (a, *rest), **attributes, is_coded=1)
            case "bf16":
                self.types[q] = TensorType("bfloat16", (tokens, depth))
                self.nodes.append(Node("RoundRows", (a,), (q,), {"extent": 1}, q))
                self.add("CodedMatMulBfloat", name, shape, (q, *rest), **attributes)
            case "int8":
                self.types |= {
                    q: TensorType("int16", (tokens, depth)),
                    scales: TensorType("float32", (tokens, 2)),
                }
                self.nodes.append(Node("QuantizeRows", (a,), (q, scales), {"extent": 1}, q))
                operands = (q, scales, "step", "sums", *rest)
                self.add("CodedMatMulInteger", name, shape, operands, **attributes, sums_at=self.sums_at)
                self.sums_at += shape[1]
            case _:
                assert_never(self.compute)

    def add_linear(
        self,
        name: str,
        x: str,
        y: str,
        shape: tuple[int, int],
        *,
        activation: Activation | None = None,
        extent: int = 0,
    ) -> None:
        """A plain matrix: one slice at full fidelity."""
        self.add_input(f"{name}.slices", (1, DESCRIPTOR_WORDS), "uint64")
        self.add_input(f"{name}.bias", (shape[1],))
        rows = self.types[x].shape[-1]
        inputs = (x, f"{name}.slices", f"{name}.bias")
        self.add("CodedMatMul", y, shape, inputs, **_product(rows, shape[1], 1, activation), extent=extent)

    def normalise(self, name: str, x: str, y: str, n: int, eps: float) -> None:
        """Layer norm over the first `n` columns, with zeros after them."""
        for part in ("weight", "bias"):
            self.add_input(f"{name}.{part}", (n,))
        inputs = (x, f"{name}.weight", f"{name}.bias")
        self.add("PaddedLayerNormalization", y, self.types[x].shape, inputs, epsilon=eps)

    def graph(self, output: str) -> Graph:
        return Graph(tuple(self.nodes), tuple(self.inputs), (output,), self.types, name=self.name)


def _product(rows: int, columns: int, segments: int, activation: Activation | None) -> dict[str, Attribute]:
    """The attributes of CodedMatMul for a matrix at the start of its slices, `rows` by `columns` in each."""
    return {
        "first_group": 0,
        "first_column_group": 0,
        "segment_rows": rows,
        "n_segments": segments,
        "column_groups_per_slice": columns // GROUP_COLUMNS,
        "activation": activation or "",
    }


def _heads(width: int, tokens: int, head_dim: int) -> dict[str, Attribute]:
    """Attention's views [1, heads, rows, columns] of rows that hold q, k, v of head 0, then of head 1, ..."""
    shape, strides = (1, width, tokens, head_dim), (0, 3 * head_dim, 3 * width * head_dim, 1)
    return {f"{x}_view": (i * head_dim, *shape, *strides) for i, x in enumerate("qkv")}
