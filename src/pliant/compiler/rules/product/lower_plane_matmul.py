"""Lower products with a constant matrix that stays in k-bit codes.

PlaneMatMul(a, planes, codebook, outlier rows, offsets, values, bias?, residual?) is FusedMatMul whose b is
decoded on the fly, float32. PlaneMatMulInteger(q, scales, planes, ..., bias?, residual?) is the same on the
integers of QuantizeRows(a), with the codebook and outliers rounded to steps of int8. QuantizeRows gives q
int16 [rows, K padded as in the planes] and a scale and a zero point per row; `a_view` views a as rows by
columns, and `is_resident` says that q is for weights in bytes (see lower_byte_matmul).
"""

from functools import partial
from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rewrite.view import View, input_view, whole_view
from pliant.compiler.rules.product.plane_args import N_INPUTS, pack_int8, planes_of
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.product_calls import lower_product
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.gemm_args import ACTIVATIONS
from pliant.kernels.coded.int8 import gemm_int8, round_rows


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a = input_view(graph, node.inputs[0], node.integers("a_view", None))
    planes = planes_of(node, graph, 1)
    bias, residual = (*node.inputs[1 + N_INPUTS :], "", "")[:2]
    out = whole_view(node.outputs[0], graph.types[node.outputs[0]])
    columns = out.shape[-1]
    b = View(planes.tensors[0], 0, (a.shape[-1], columns), (columns, 1))
    product = Product(
        out,
        a,
        b.broadcast((*out.shape[:-2], *b.shape)),
        bias or None,
        View(residual, 0, out.shape, out.strides) if residual else None,
        _activation(node),
        label=node.label,
        coded=planes,
    )
    return lower_product(product, dict(graph.constants), target)


def _matmul_integer(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q, scales = node.inputs[:2]
    planes = planes_of(node, graph, 2)
    bias, residual = (*node.inputs[2 + N_INPUTS :], "", "")[:2]
    *_, columns = graph.types[node.outputs[0]].shape
    rows, depth = graph.types[q].shape
    packed = pack_int8(planes, graph.constants, target.isa)
    table, step, sums = packed
    fields: dict[str, FieldValue] = {
        **{"gemm.a": Ref(q), "gemm.lda": depth, "gemm.c": Ref(node.outputs[0]), "gemm.ldc": columns},
        **{"gemm.n_rows": rows, "gemm.n_columns": columns, "gemm.ldr": columns},
        **{"gemm.bias": Ref(bias) if bias else None, "gemm.residual": Ref(residual) if residual else None},
        **{"gemm.activation": ACTIVATIONS[_activation(node)], "a_scales": Ref(scales)},
        **{"weight_step": Ref(step), "sums": Ref(sums)},
    }
    read_too = [x for x in (bias, residual) if x]
    call = Call(
        kernel=Kernel("gemm_int8", gemm_int8.gemm_int8_ir),
        layout=gemm_int8.GemmInt8Args,
        fields=fields | planes.fields(table, "gemm."),
        n_units=gemm_int8.units_int8(columns) if rows else 0,
        reads=(q, scales, *planes.reads, *packed, *read_too),
        writes=node.outputs,
        grain=gemm_int8.grain_int8(columns, rows, target.isa, target.n_threads),
        scratch_bytes=gemm_int8.scratch_bytes_int8(planes.depth, target.isa),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def _quantize(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, (q, scales) = node.inputs[0], node.outputs
    a = input_view(graph, x, node.integers("a_view", None))
    rows, depth = graph.types[q].shape
    assert a.shape[0] == rows, node.name
    is_resident = node.flag("is_resident")
    call = Call(
        kernel=Kernel(
            round_rows.round_rows_name(is_resident, target.isa),
            partial(round_rows.round_rows_ir, is_resident=is_resident),
        ),
        layout=round_rows.RoundRowsArgs,
        fields={
            **{"a": a.ref(4), "lda": a.strides[0], "n_rows": rows, "n_columns": a.shape[1]},
            **{"q": Ref(q), "depth": depth, "scales": Ref(scales)},
        },
        n_units=rows if prod(a.shape) else 0,
        reads=(x,),
        writes=(q, scales),
        grain=round_rows.row_grain(depth, target.isa),
        label=node.label,
    )
    return LoweredNode((call,))


def _activation(node: Node) -> str | None:
    return node.text("activation", "") or None


RULES = {"PlaneMatMul": _matmul, "PlaneMatMulInteger": _matmul_integer, "QuantizeRows": _quantize}
