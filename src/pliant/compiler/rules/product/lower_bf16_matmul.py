"""Lower products in bfloat16 with a constant matrix.

RoundRows(a) gives q bfloat16 [rows, K with padding]; `a_view` views a as rows by columns. PairMatMul(q, b,
bias?, residual?) is activation(alpha * q @ b + bias + residual), where `b_view` views b as [K, N], rounded to
bfloat16 and packed once. PlaneMatMulBfloat(q, planes, codebook, outlier rows, offsets, values, bias?,
residual?) is the same with a b whose codes are decoded to bfloat16 on the fly.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from pliant.compiler.executable.call import FieldValue, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import input_view, read_view
from pliant.compiler.rules.product.bf16_calls import product_call, round_call
from pliant.compiler.rules.product.plane_args import N_INPUTS, pack_table_bf16, planes_of
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.gemm_args import ACTIVATIONS, BF16_PAIRS
from pliant.kernels.coded.gemm_bf16 import pack_pairs, pairs_shape


def _round(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, q = node.inputs[0], node.outputs[0]
    a = input_view(graph, x, node.integers("a_view", None))
    rows, depth = graph.types[q].shape
    call = round_call(a.ref(4), (rows, a.shape[1]), a.strides[0], q, depth, target, node.label)
    return LoweredNode((call,))


def _planes(node: Node, graph: Graph, target: Target) -> LoweredNode:
    planes = planes_of(node, graph, 1)
    table, made = pack_table_bf16(planes, graph.constants[planes.tensors[1]], target.isa)
    added = node.inputs[1 + N_INPUTS :]
    return _product(node, graph, target, planes.fields(table), (*planes.reads, table), added, {table: made})


def _pairs(node: Node, graph: Graph, target: Target) -> LoweredNode:
    source, alpha = node.inputs[1], node.real("alpha")
    b = input_view(graph, source, node.integers("b_view", None))
    array, shape = graph.constants[source], pairs_shape(*b.shape)
    name = f"{source}|pairs|{','.join(map(str, (*b.attribute, alpha)))}"

    def fill(memory: np.ndarray) -> None:
        pack_pairs(read_view(array, b, alpha), memory.view(np.uint16).reshape(shape))

    groups, pairs, *_ = shape
    of_b: dict[str, FieldValue] = {
        **{"segment_rows": 2 * pairs, "n_segments": 1, "column_groups_per_slice": groups},
        **{"own.bits": BF16_PAIRS, "own.full": Ref(name)},
    }
    packed = {name: PackedConstant(2 * prod(shape), fill, source)}
    return _product(node, graph, target, of_b, (name,), node.inputs[2:], packed)


def _product(
    node: Node,
    graph: Graph,
    target: Target,
    of_b: Mapping[str, FieldValue],
    reads: Sequence[str],
    added: Sequence[str],
    packed: Mapping[str, PackedConstant],
) -> LoweredNode:
    q, out = node.inputs[0], node.outputs[0]
    bias, residual = (*added, "", "")[:2]
    rows, depth = graph.types[q].shape
    columns = graph.types[out].shape[-1]
    fields: dict[str, FieldValue] = {
        **{"a": Ref(q), "c": Ref(out), "ldc": columns, "n_rows": rows, "n_columns": columns, "ldr": columns},
        **{"bias": Ref(bias) if bias else None, "residual": Ref(residual) if residual else None},
        "activation": ACTIVATIONS[node.text("activation", "") or None],
    }
    every = (q, *reads, bias, residual)
    call = product_call(fields | dict(of_b), (rows, columns), depth, every, out, target, node.label)
    return LoweredNode((call,), packed=packed)


RULES = {"RoundRows": _round, "PlaneMatMulBfloat": _planes, "PairMatMul": _pairs}
