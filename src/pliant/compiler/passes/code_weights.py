"""Step `weights`: keep constant matrices of products in k-bit codes, as a store does.

MatMul, Gemm, FusedMatMul and ScaledMatMul become `PlaneMatMul`, or for int8 `QuantizeRows`, once for all
products of a tensor, and `PlaneMatMulInteger` (see compile.lower.plane_matmul); bias, activation and residual
stay. Left in float32 are matrices of fewer than 32 rows, 16 columns or 4096 weights, those that would not get
smaller or hold what is not finite, and what other operators read: an embedding stays mapped. Contract: the
graph with each matrix replaced by what its codes stand for (store.matrix); for int8 within the rounding that
`QuantizeRows` and the codebook's steps bring. It is no pass that can be switched off, but an option.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from pliant.compiler.rewrite.affine import unpacked
from pliant.compiler.rewrite.coder import MatrixCoder
from pliant.compiler.rewrite.operands import Operands, operands
from pliant.compiler.rewrite.rewrite import constant_type, fresh
from pliant.compiler.rewrite.view import View, read
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.store.coding.matrix import CodedMatrix

_PARTS = ("planes", "codebook", "outlier_rows", "outlier_offsets", "outlier_values")


def code_weights(graph: Graph, coder: MatrixCoder, *, is_int8: bool = False) -> Graph:
    """`graph` with its products' weights coded. Raises GraphError where there is no matrix to code."""
    work = _Work(graph, coder, is_int8)
    nodes = [made for node in graph.nodes for made in work.coded(node)]
    coder.drop_pages()
    if len(work.made) == 0:
        raise GraphError(
            f"{graph.name} has no product with a constant matrix that {coder.bits}-bit codes would make "
            "smaller (at least 32 x 16, and 4096 weights); compile it with weights='fp32'."
        )
    read_still = {x for node in nodes for x in node.inputs} | set(graph.outputs)
    constants = {x: a for x, a in {**graph.constants, **work.constants}.items() if x in read_still}
    gone = set(graph.constants) - set(constants)
    types = {x: t for x, t in {**graph.types, **work.types}.items() if x not in gone}
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


class _Work:
    def __init__(self, graph: Graph, coder: MatrixCoder, is_int8: bool) -> None:
        self.graph, self.coder, self.is_int8 = graph, coder, is_int8
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self.made: dict[int, tuple[str, ...]] = {}
        self.quantized: dict[tuple[str, tuple[int, ...], int], tuple[str, ...]] = {}

    def coded(self, node: Node) -> tuple[Node, ...]:
        """What `node` becomes: itself, or one or two others."""
        p = operands(self.graph, node)
        if p is None or not self.coder.is_worth(*p.b.shape):
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
        rows = _rows(p.a) if self.is_int8 else None
        if rows is not None:
            before, q = self._quantized(rows, matrix.segment_rows * matrix.n_segments)
            inputs = (*q, *parts, *added)
            return (*before, Node("PlaneMatMulInteger", inputs, node.outputs, attributes, node.name))
        if p.a != read(self.graph, p.a.tensor):
            attributes["a_view"] = p.a.attribute
        return (Node("PlaneMatMul", (p.a.tensor, *parts, *added), node.outputs, attributes, node.name),)

    def _code(self, node: Node, p: Operands) -> CodedMatrix | None:
        """The right side in codes; None where it is no constant, or where that would not pay."""
        constants = self.graph.constants
        if p.b.tensor not in constants:
            return None
        if node.op != "ScaledMatMul":
            read_b = partial(_matrix, view=p.b, alpha=p.alpha)
            return self.coder.code(constants[p.b.tensor], (p.b.attribute, p.alpha), read_b)
        scales, zeros = (*node.inputs[2:4], "")[:2]
        read_b = partial(unpacked, matrix=p.b, zeros=constants.get(zeros), scales=constants[scales])
        return self.coder.code(constants[p.b.tensor], (p.b.attribute, scales, zeros), read_b)

    def _parts(self, p: Operands, matrix: CodedMatrix) -> tuple[str, ...]:
        """The names of the matrix's tensors, which equal matrices share."""
        key = id(matrix)  # the coder keeps it, and gives it again for the same weights
        if key not in self.made:
            near = f"{p.b.tensor}|{len(self.made)}"
            names = {part: fresh(self.graph, f"{near}|{part}") for part in _PARTS}
            arrays = {names[part]: getattr(matrix, part) for part in _PARTS}
            self.constants |= arrays
            self.types |= {x: constant_type(a) for x, a in arrays.items()}
            self.made[key] = tuple(names.values())
        return self.made[key]

    def _quantized(self, rows: View, depth: int) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """The node that rounds rows, unless there is one, and the names of integers and scales."""
        key = (rows.tensor, rows.attribute, depth)
        if key in self.quantized:
            return (), self.quantized[key]
        near = f"{rows.tensor}|{len(self.quantized)}"
        q, scales = (fresh(self.graph, f"{near}|{part}") for part in ("rows", "scales"))
        self.types |= {
            q: TensorType("int16", (rows.shape[0], depth)),
            scales: TensorType("float32", (rows.shape[0], 2)),
        }
        self.quantized[key] = (q, scales)
        node = Node(
            "QuantizeRows", (rows.tensor,), (q, scales), {"a_view": rows.attribute}, f"{near} rounded"
        )
        return (node,), (q, scales)


def _matrix(array: np.ndarray, view: View, alpha: float) -> np.ndarray:
    flat = np.ascontiguousarray(array).reshape(-1)[view.offset :]
    matrix = np.lib.stride_tricks.as_strided(flat, view.shape, [4 * s for s in view.strides], writeable=False)
    return matrix if alpha == 1.0 else matrix * np.float32(alpha)


def _rows(a: View) -> View | None:
    """a as rows by columns; None where that takes more strides than two."""
    *lead, depth = a.shape
    if depth > 1 and a.strides[-1] != 1:
        return None
    rows, step = 1, 0
    for n, stride in zip(reversed(lead), reversed(a.strides[:-1]), strict=True):
        if n == 1:
            continue
        if rows > 1 and stride != rows * step:
            return None
        rows, step = rows * n, step or stride
    return View(a.tensor, a.offset, (rows, depth), (step, 1))
