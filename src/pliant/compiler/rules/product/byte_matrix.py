"""A constant matrix in bytes with a scale for each column, packed in the kernels' layout.

It takes three of a node's inputs: a constant, and scales and zero points if the constant holds integers with
them ("" if not). Attribute `b_view` is the view of [K, N] in the constant, and `alpha` is a factor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.compiler.executable.call import PackedConstant
from pliant.compiler.rewrite.affine import dequantize
from pliant.compiler.rewrite.view import View, input_view, read_view
from pliant.compiler.rules.product.scaled_weights import ScaledMatrix
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.int8.gemm_int8 import resident_shape
from pliant.kernels.coded.int8_form import resident_form
from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.matmul_args import COLUMNS
from pliant.kernels.product.matmul_integer import pack

N_INPUTS = 3
_CHUNK = 16 * COLUMNS
"""Columns that are converted to float32 at a time."""
_STEPS = 127


@dataclass(frozen=True, slots=True, eq=False)
class ByteMatrix:
    """float32 [K, N] to be rounded: alpha * a view of floats, or of integers with scales and zeros.

    `name` identifies it.
    """

    name: str
    array: np.ndarray
    view: View
    alpha: float
    scales: np.ndarray | None
    zeros: np.ndarray | None

    @property
    def shape(self) -> tuple[int, int]:
        """K and N."""
        depth, columns = self.view.shape
        return depth, columns

    def chunks(
        self, most: int
    ) -> Iterator[tuple[int, Integer[np.ndarray, "K n"], Float32[np.ndarray, " n"]]]:
        """Blocks of columns: the first column, the weights in up to `most` steps, and the size of a step."""
        _, columns = self.shape
        for start in range(0, columns, _CHUNK):
            n = min(_CHUNK, columns - start)
            yield start, *round_columns(self._columns(start, n), most)

    def _columns(self, start: int, n: int) -> np.ndarray:
        view = self.view.sliced(1, start, n)
        if self.scales is None:
            return read_view(self.array, view, self.alpha)
        scales, zeros = (
            None if p is None else p[:, start : start + n] if p.shape[1] > 1 else p
            for p in (self.scales, self.zeros)
        )
        return dequantize(self.array, view, zeros, scales)


def round_columns(
    matrix: Float32[np.ndarray, "K n"], most: int
) -> tuple[Integer[np.ndarray, "K n"], Float32[np.ndarray, " n"]]:
    """Each column rounded to the nearest of 2 * most + 1 equal steps around 0, and the size of a step.

    A column that holds NaN or infinity gets a NaN step, and its results are NaN.
    """
    largest = np.abs(matrix).max(0, initial=0.0)
    steps = np.where(np.isfinite(largest), largest / np.float32(most), np.float32(np.nan))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        whole = np.rint(matrix / steps)
    return np.clip(np.nan_to_num(whole, copy=False), -most, most).astype(np.int8), steps.astype(np.float32)


def matrix_of(node: Node, graph: Graph, first: int) -> ByteMatrix:
    """The matrix whose tensors begin at input `first` of a node."""
    tensor, scales, zeros = (*node.inputs[first : first + N_INPUTS], "", "")[:N_INPUTS]
    view, alpha = input_view(graph, tensor, node.integers("b_view")), node.real("alpha")
    name = f"{tensor}|{','.join(map(str, (*view.attribute, alpha)))}|{scales}|{zeros}"
    known = graph.constants
    return ByteMatrix(name, known[tensor], view, alpha, known.get(scales), known.get(zeros))


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """One packed constant: panels in the int8 GEMM's layout, then the columns' sums and steps."""

    name: str
    packed: PackedConstant
    sums_at: int
    steps_at: int


def pack_resident(matrix: ByteMatrix, isa: Isa) -> ResidentBytes:
    """The matrix for integer products of `isa`."""
    shape, most = resident_shape(*matrix.shape, isa), resident_form(isa).weight
    size, columns = prod(shape), shape[0] * COLUMNS

    def fill(memory: np.ndarray) -> None:
        panels = memory[:size].view(np.int8).reshape(shape)
        sums, steps = memory[size:].view(np.int32).reshape(2, columns)
        worth = steps.view(np.float32)
        for start, whole, by in matrix.chunks(most):
            groups = slice(start // COLUMNS, -(-(start + by.size) // COLUMNS))
            pack(whole, panels[groups])
            sums[start : start + by.size] = whole.sum(0, dtype=np.int32)
            worth[start : start + by.size] = by

    packed = PackedConstant(size + 8 * columns, fill, matrix.view.tensor)
    return ResidentBytes(f"{matrix.name}|resident", packed, size, size + 4 * columns)


def pack_floating(matrix: ByteMatrix) -> ScaledMatrix:
    """The matrix for float32 products, which widen each block just before its use."""
    depth, columns = matrix.shape
    groups = -(-columns // COLUMNS)

    def fill_codes(memory: np.ndarray) -> None:
        panels = memory.view(np.int8).reshape(groups, depth, COLUMNS)
        for start, whole, _ in matrix.chunks(_STEPS):
            for at in range(0, whole.shape[1], COLUMNS):
                part = whole[:, at : at + COLUMNS]
                panels[(start + at) // COLUMNS, :, : part.shape[1]] = part

    def fill_steps(memory: np.ndarray) -> None:
        for start, _, by in matrix.chunks(_STEPS):
            memory.view(np.float32)[start : start + by.size] = by

    tensor, codes, steps = matrix.view.tensor, f"{matrix.name}|codes", f"{matrix.name}|steps"
    packed = {
        codes: PackedConstant(groups * depth * COLUMNS, fill_codes, tensor),
        steps: PackedConstant(4 * groups * COLUMNS, fill_steps, tensor),
    }
    return ScaledMatrix(codes, steps, "int8", depth, packed)
