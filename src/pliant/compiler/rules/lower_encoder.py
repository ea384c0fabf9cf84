"""Lower the operators of pliant's own encoder graphs (models/encoder/encoder_graph.py).

CodedMatMul(a, slices, bias, residual?) = activation(a @ B + bias + residual), float32: a [rows, K] (of any
rank), B [K, N] as `slices` describes it (SLICE_DTYPE, see kernels.gemm_args for the attributes).
CodedMatMulInteger(q, scales, step, sums, slices, bias, residual?) is the same on the integers of
QuantizeRows(a), at the weights' int8 `step`. The sums of B's columns are in `sums` from `sums_at` on; if the
first number of `sums` is 0, the operator computes and writes them, which is not a result of the graph.
CodedMatMulBfloat(q, slices, bias, residual?) is the same on the bfloat16 of RoundRows(a).
PaddedLayerNormalization(x, weight, bias) normalises as many columns as there are weights and sets the others
to zero. SelfAttention is that of lower_texts.py. EmbedTokens(ids, types, word, codebook?, position, type?)
sums rows of tables. PoolRows(x) is the mean or the maximum of all rows, or the first row;
PoolRows(x, starts, lengths) a row for each text, of its own rows.

With the attribute `extent` an operator may run over fewer rows than its tensors have: the rows of one or more
texts. These operators are not allowed in models from files, since a descriptor holds addresses, which a file
must not set.
"""

from collections.abc import Callable, Sequence

from pliant.compiler.executable.call import (
    Call,
    FieldValue,
    Kernel,
    LoweredNode,
    Ref,
    RowExtent,
    Target,
    TensorAlias,
)
from pliant.compiler.rules import lower_texts as texts
from pliant.compiler.rules.product.bf16_calls import product_call, round_call
from pliant.compiler.rules.row_calls import layer_norm_call
from pliant.ir.graph import Graph, Node
from pliant.kernels.attention import attention_texts
from pliant.kernels.coded import embed, gemm
from pliant.kernels.coded.gemm_args import ACTIVATIONS, SLICE_DTYPE, GemmArgs
from pliant.kernels.coded.int8 import gemm_int8, round_rows
from pliant.kernels.rows import rowwise
from pliant.models.encoder.encoder_graph import BLOCK_WORDS, DESCRIPTOR_WORDS

assert SLICE_DTYPE.itemsize == 8 * DESCRIPTOR_WORDS
assert attention_texts.BLOCK_WORDS == BLOCK_WORDS

_PLACES = ("first_group", "first_column_group", "segment_rows", "n_segments", "column_groups_per_slice")


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, slices, bias, residual = (*node.inputs, "")[:4]
    rows, columns = graph.types[node.outputs[0]].shape
    if target.isa.has_tiles and node.flag("is_coded"):
        return _matmul_split(node, graph, target)

    def share(lengths: Sequence[int]) -> tuple[int, int]:
        units = gemm.units(columns, target.isa)
        return units, gemm.grain(columns, sum(lengths), target.isa, target.n_threads)

    n_units, size = share((rows,))
    call = Call(
        kernel=Kernel("gemm", gemm.gemm_ir),
        layout=GemmArgs,
        fields=_gemm_fields(node, graph, a, slices, bias, residual),
        n_units=n_units,
        reads=tuple(x for x in (a, slices, bias, residual) if x),
        writes=node.outputs,
        grain=size,
        scratch_bytes=gemm.scratch_bytes(target.isa),
        label=node.name,
        extent=_extent(node, ("n_rows",), share),
    )
    return LoweredNode((call,))


def _matmul_split(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """float32 numbers as sums of two bfloat16: rows of A are split once, for all threads."""
    a, slices, bias, residual = (*node.inputs, "")[:4]
    out, parts = node.outputs[0], f"{node.outputs[0]}|split"
    rows, columns = graph.types[out].shape
    depth, has_extent = graph.types[a].size // rows, node.flag("extent")
    rounding = round_call(
        Ref(a), (rows, depth), depth, parts, depth, target, node.name, has_extent=has_extent, is_split=True
    )
    fields = _gemm_fields(node, graph, a, slices, bias, residual) | {"a": Ref(parts)}
    reads = (parts, slices, bias, residual)
    product = product_call(
        fields, (rows, columns), depth, reads, out, target, node.name, has_extent=has_extent, is_split=True
    )
    return LoweredNode((rounding, product), temporaries={parts: 4 * rows * depth})


def _matmul_integer(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q, scales, step, sums, slices, bias, residual = (*node.inputs, "")[:7]
    rows, columns = graph.types[node.outputs[0]].shape

    def share(lengths: Sequence[int]) -> tuple[int, int]:
        size = gemm_int8.grain_int8(columns, sum(lengths), target.isa, target.n_threads)
        return gemm_int8.units_int8(columns), size

    n_units, size = share([rows])
    fields = _gemm_fields(node, graph, q, slices, bias, residual)
    call = Call(
        kernel=Kernel("gemm_int8", gemm_int8.gemm_int8_ir),
        layout=gemm_int8.GemmInt8Args,
        fields={f"gemm.{name}": value for name, value in fields.items()}
        | {"a_scales": Ref(scales), "weight_step": Ref(step), "has_sums": Ref(sums)}
        | {"sums": Ref(sums, 4 * node.integer("sums_at"))},
        n_units=n_units,
        reads=tuple(x for x in node.inputs if x),
        writes=node.outputs,
        grain=size,
        scratch_bytes=gemm_int8.scratch_bytes_int8(graph.types[q].shape[1], target.isa),
        label=node.name,
        extent=_extent(node, ("gemm.n_rows",), share),
    )
    return LoweredNode((call,))


def _matmul_bf16(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q, slices, bias, residual = (*node.inputs, "")[:4]
    out = node.outputs[0]
    rows, columns = graph.types[out].shape
    depth, has_extent = graph.types[q].shape[1], node.flag("extent")
    fields = _gemm_fields(node, graph, q, slices, bias, residual)
    call = product_call(
        fields, (rows, columns), depth, node.inputs, out, target, node.name, has_extent=has_extent
    )
    return LoweredNode((call,))


def _gemm_fields(
    node: Node, graph: Graph, a: str, slices: str, bias: str, residual: str
) -> dict[str, FieldValue]:
    rows, columns = graph.types[node.outputs[0]].shape
    depth = graph.types[a].size // rows
    assert depth == node.integer("segment_rows") * node.integer("n_segments"), node.name
    return {
        **{"a": Ref(a), "lda": depth, "c": Ref(node.outputs[0]), "ldc": columns},
        **{"n_rows": rows, "n_columns": columns, "slices": Ref(slices), "bias": Ref(bias)},
        **{"residual": Ref(residual) if residual else None, "ldr": columns},
        **{name: node.integer(name) for name in _PLACES},
        "activation": ACTIVATIONS[node.text("activation") or None],
    }


def _quantize(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a, (q, scales) = node.inputs[0], node.outputs
    rows, columns = graph.types[q].shape
    fields: dict[str, FieldValue] = {
        **{"a": Ref(a), "lda": columns, "n_rows": rows, "n_columns": columns},
        **{"q": Ref(q), "depth": columns, "scales": Ref(scales)},
    }
    size = round_rows.row_grain(columns, target.isa)
    call = Call(
        kernel=Kernel("round_rows", round_rows.round_rows_ir),
        layout=round_rows.RoundRowsArgs,
        fields=fields,
        n_units=rows,
        reads=(a,),
        writes=(q, scales),
        grain=size,
        label=node.name,
        extent=_extent(node, ("n_rows",), lambda lengths: (sum(lengths), size)),
    )
    return LoweredNode((call,))


def _round(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q = node.outputs[0]
    rows, columns = graph.types[q].shape
    a, has_extent = Ref(node.inputs[0]), node.flag("extent")
    call = round_call(a, (rows, columns), columns, q, columns, target, node.name, has_extent=has_extent)
    return LoweredNode((call,))


def _layer_norm(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, *affine = node.inputs
    rows, columns = graph.types[x].shape
    call = layer_norm_call(
        x,
        node.outputs[0],
        (affine[0], affine[1]),
        (rows, columns),
        graph.types[affine[0]].size,
        node.real("epsilon"),
        node.name,
        has_extent=node.flag("extent"),
    )
    return LoweredNode((call,))


def _embed(node: Node, graph: Graph, target: Target) -> LoweredNode:
    ids, types, word, codebook, position, type_ = node.inputs
    y = node.outputs[0]
    rows, padded = graph.types[y].shape
    formats = embed.EmbedFormats(node.text("word"), "F32", "F32" if type_ else None)  # type: ignore[arg-type]
    fields: dict[str, FieldValue] = {
        **{"ids": Ref(ids), "types": Ref(types), "word": Ref(word), "position": Ref(position)},
        **{"word_codebook": Ref(codebook) if codebook else None, "type": Ref(type_) if type_ else None},
        **{"first_position": node.integer("first_position"), "out": Ref(y), "ld_out": padded},
        **{"n": node.integer("columns"), "n_padded": padded},
    }
    call = Call(
        kernel=Kernel(embed.embed_name(formats), lambda isa: embed.embed_ir(isa, formats)),
        layout=embed.EmbedArgs,
        fields=fields,
        n_units=rows,
        reads=tuple(x for x in node.inputs if x),
        writes=(y,),
        label=node.name,
        extent=_extent(node, (), lambda lengths: (sum(lengths), 1)),
    )
    return LoweredNode((call,))


def _pool(node: Node, graph: Graph, target: Target) -> LoweredNode:
    (x, *ranges), y = node.inputs, node.outputs[0]
    if node.text("mode") == "cls":
        return LoweredNode(aliases=(TensorAlias(y, x),))
    rows, columns = graph.types[x].shape
    units = rowwise.mean_units(columns, graph.types[y].shape[0])
    is_most = node.text("mode") == "max"
    fields: dict[str, FieldValue] = {
        "x": Ref(x),
        "ld_x": columns,
        "n_rows": rows,
        "out": Ref(y),
        "n": columns,
        **{name: Ref(given) for name, given in zip(("starts", "lengths"), ranges, strict=False)},
    }
    call = Call(
        kernel=Kernel(rowwise.MOST, rowwise.maximum_ir) if is_most else Kernel(rowwise.MEAN, rowwise.mean_ir),
        layout=rowwise.MeanArgs,
        fields=fields,
        n_units=units,
        reads=node.inputs,
        writes=(y,),
        label=node.name,
        extent=_extent(node, ("n_rows",), lambda lengths: (units, 1)),
    )
    return LoweredNode((call,))


def _extent(
    node: Node, fields: tuple[str, ...], share: Callable[[Sequence[int]], tuple[int, int]]
) -> RowExtent | None:
    return RowExtent(fields, share) if node.flag("extent") else None


RULES = {
    "CodedMatMul": _matmul,
    "CodedMatMulInteger": _matmul_integer,
    "CodedMatMulBfloat": _matmul_bf16,
    "SelfAttention": texts.RULES["SelfAttention"],
    "QuantizeRows": _quantize,
    "RoundRows": _round,
    "PaddedLayerNormalization": _layer_norm,
    "EmbedTokens": _embed,
    "PoolRows": _pool,
}
