"""Step `weights`: keep constant matrices of products in k-bit codes, as a store does.

MatMul, Gemm, FusedMatMul and ScaledMatMul become `PlaneMatMul`; for int8 `QuantizeRows`, once for all
products of a tensor, and `PlaneMatMulInteger` (see compiler.rules.product.lower_plane_matmul); for bf16
`RoundRows`, likewise, and `PlaneMatMulBfloat`, or `PairMatMul` if weights are not coded; bias, activation and
residual are kept. The following stay in float32: matrices of fewer than 32 rows, 16 columns or 4096 weights,
matrices that would not get smaller or that hold values that are not finite, and constants that other
operators read (an embedding stays mapped). Contract: the same graph with each matrix replaced by its decoded
codes (store.matrix); for int8 within the rounding of `QuantizeRows` and of the codebook's steps (float32 if
K exceeds MOST_DEPTH), for bf16 within the rounding of both factors to eight bits. This step is an option, not
a pass that can be switched off.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import numpy as np

from pliant.compiler.rewrite.affine import dequantize
from pliant.compiler.rewrite.coder import MatrixCoder
from pliant.compiler.rewrite.operands import MatMulOperands, matmul_operands
from pliant.compiler.rewrite.rewrite import constant_type, unused_name
from pliant.compiler.rewrite.round_rows import RowRounder, as_rows
from pliant.compiler.rewrite.view import input_view, read_view
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.coded.int8_form import MOST_DEPTH
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.store.coding.matrix import CodedMatrix

_PARTS = ("planes", "codebook", "outlier_rows", "outlier_offsets", "outlier_values")


def code_weights(graph: Graph, coder: MatrixCoder, compute: ComputeDtype = "fp32") -> Graph:
    """`graph` with its products' weights coded. Raises GraphError if there is no matrix to code."""
    work = _WeightCoder(graph, coder, compute)
    nodes = [made for node in graph.nodes for made in work.replace_node(node)]
    coder.drop_pages()
    if len(work.made) == 0:
        raise GraphError(
            f"{graph.name} has no product with a constant matrix that {coder.bits}-bit codes would make "
            "smaller (at least 32 x 16, and 4096 weights); compile it with weights='fp32'."
        )
    read_still = {x for node in nodes for x in node.inputs} | set(graph.outputs)
    constants = {x: a for x, a in {**graph.constants, **work.constants}.items() if x in read_still}
    gone = set(graph.constants) - set(constants)
    types = {x: t for x, t in {**graph.types, **work.types, **work.rounded.types}.items() if x not in gone}
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


def matrix_reader(
    graph: Graph, node: Node, p: MatMulOperands
) -> tuple[Hashable, Callable[[np.ndarray], np.ndarray]]:
    """How the constant b of a product is read as float32 [K, N]: a key of the function, and the function."""
    if node.op != "ScaledMatMul":
        return (p.b.attribute, p.alpha), partial(read_view, view=p.b, alpha=p.alpha)
    scales, zeros = (*node.inputs[2:4], "")[:2]
    constants = graph.constants
    read_b = partial(dequantize, matrix=p.b, zeros=constants.get(zeros), scales=constants[scales])
    return (p.b.attribute, scales, zeros), read_b


class _WeightCoder:
    def __init__(self, graph: Graph, coder: MatrixCoder, compute: ComputeDtype) -> None:
        self.graph, self.coder, self.compute = graph, coder, compute
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self.made: dict[int, tuple[str, ...]] = {}
        self.rounded = RowRounder(graph)

    def replace_node(self, node: Node) -> tuple[Node, ...]:
        """The replacement of `node`: itself, or one or two other nodes."""
        p = matmul_operands(self.graph, node)
        if p is None or not self.coder.is_worth_coding(*p.b.shape):
            return (node,)
        matrix = self._code(node, p)
        if matrix is None:
            return (node,)
        parts = self._parts(p, matrix)
        attributes: dict[str, Attribute] = {
            "segment_rows": matrix.segment_rows,
            "n_segments": matrix.n_segments,
            "largest": matrix.largest,
        }
        if activation := node.text("activation", ""):
            attributes["activation"] = activation
        added = [p.bias, p.residual]
        while added and not added[-1]:
            added.pop()
        is_int8 = self.compute == "int8"
        stays_float = self.compute == "fp32" or (is_int8 and p.b.shape[0] > MOST_DEPTH)
        rows = None if stays_float else as_rows(p.a)
        if rows is not None:
            depth = matrix.segment_rows * matrix.n_segments
            before, q = (self.rounded.integers if is_int8 else self.rounded.bfloats)(rows, depth)
            op = "PlaneMatMulInteger" if is_int8 else "PlaneMatMulBfloat"
            return (*before, Node(op, (*q, *parts, *added), node.outputs, attributes, node.name))
        if p.a != input_view(self.graph, p.a.tensor):
            attributes["a_view"] = p.a.attribute
        return (Node("PlaneMatMul", (p.a.tensor, *parts, *added), node.outputs, attributes, node.name),)

    def _code(self, node: Node, p: MatMulOperands) -> CodedMatrix | None:
        """The right operand in codes; None if it is not a constant, or if coding would not make it
        smaller.
        """
        constants = self.graph.constants
        if p.b.tensor not in constants:
            return None
        return self.coder.code(constants[p.b.tensor], *matrix_reader(self.graph, node, p))

    def _parts(self, p: MatMulOperands, matrix: CodedMatrix) -> tuple[str, ...]:
        """The names of the matrix's tensors, which equal matrices share."""
        key = id(matrix)  # the coder keeps it and returns it again for the same weights
        if key not in self.made:
            near = f"{p.b.tensor}|{len(self.made)}"
            names = {part: unused_name(self.graph, f"{near}|{part}") for part in _PARTS}
            arrays = {names[part]: getattr(matrix, part) for part in _PARTS}
            self.constants |= arrays
            self.types |= {x: constant_type(a) for x, a in arrays.items()}
            self.made[key] = tuple(names.values())
        return self.made[key]
