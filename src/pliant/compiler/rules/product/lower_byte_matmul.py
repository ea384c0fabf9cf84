"""Lower products with a constant matrix that is kept in bytes.

ByteMatMul(a, w, w scales?, w zeros?, bias?, residual?) is FusedMatMul in float32 whose b is w (see
product.byte_matrix), each column rounded to 255 equal steps. ByteMatMulInteger(q, scales, w, ...) is the same
on the integers of QuantizeRows(a, is_resident=1), in as many steps as the processor's sums hold.
"""

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rewrite.view import View, input_view, whole_view
from pliant.compiler.rules.product.byte_matrix import N_INPUTS, matrix_of, pack_floating, pack_resident
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.product_calls import lower_product
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.gemm_args import ACTIVATIONS
from pliant.kernels.coded.int8 import gemm_int8


def _matmul(node: Node, graph: Graph, target: Target) -> LoweredNode:
    a = input_view(graph, node.inputs[0], node.integers("a_view", None))
    matrix = matrix_of(node, graph, 1)
    bias, residual = (*node.inputs[1 + N_INPUTS :], "", "")[:2]
    out = whole_view(node.outputs[0], graph.types[node.outputs[0]])
    b = View(matrix.view.tensor, 0, matrix.shape, (matrix.shape[1], 1))
    product = Product(
        out,
        a,
        b.broadcast((*out.shape[:-2], *b.shape)),
        bias or None,
        View(residual, 0, out.shape, out.strides) if residual else None,
        node.text("activation", "") or None,
        label=node.label,
        scaled=pack_floating(matrix),
    )
    return lower_product(product, dict(graph.constants), target)


def _matmul_integer(node: Node, graph: Graph, target: Target) -> LoweredNode:
    (q, scales), out = node.inputs[:2], node.outputs[0]
    bias, residual = (*node.inputs[2 + N_INPUTS :], "", "")[:2]
    columns = graph.types[out].shape[-1]
    rows, depth = graph.types[q].shape
    b = pack_resident(matrix_of(node, graph, 2), target.isa)
    fields: dict[str, FieldValue] = {
        **{"gemm.a": Ref(q), "gemm.lda": depth, "gemm.c": Ref(out), "gemm.ldc": columns},
        **{"gemm.n_rows": rows, "gemm.n_columns": columns, "gemm.ldr": columns},
        **{"gemm.segment_rows": depth, "gemm.n_segments": 1, "gemm.own.full": Ref(b.name)},
        **{"gemm.bias": Ref(bias) if bias else None, "gemm.residual": Ref(residual) if residual else None},
        **{"gemm.activation": ACTIVATIONS[node.text("activation", "") or None], "a_scales": Ref(scales)},
        **{"sums": Ref(b.name, b.sums_at), "weight_step": Ref(b.name, b.steps_at)},
    }
    call = Call(
        kernel=Kernel("gemm_bytes", gemm_int8.gemm_bytes_ir),
        layout=gemm_int8.GemmInt8Args,
        fields=fields,
        n_units=gemm_int8.units_int8(columns) if rows else 0,
        reads=tuple(x for x in (q, scales, b.name, bias, residual) if x),
        writes=node.outputs,
        grain=gemm_int8.grain_int8(columns, rows, target.isa, target.n_threads),
        scratch_bytes=gemm_int8.scratch_bytes_int8(0, target.isa),
        label=node.label,
    )
    return LoweredNode((call,), packed={b.name: b.packed})


RULES = {"ByteMatMul": _matmul, "ByteMatMulInteger": _matmul_integer}
