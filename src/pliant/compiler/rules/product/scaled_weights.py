"""Pack constant weights that stay integers or half floats, with their scales."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pliant.compiler.executable.call import PackedConstant
from pliant.compiler.rewrite.affine import read_view, repeat_blocks
from pliant.compiler.rewrite.view import View
from pliant.kernels.product.matmul_args import COLUMNS
from pliant.kernels.product.scaled_block import ELEMENT_BYTES, WeightElement


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """B [K, N] = codes * scales: the packed constants of both, and their layout for the kernel."""

    codes: str
    scales: str
    element: WeightElement
    rows_per_scale: int
    packed: Mapping[str, PackedConstant]


def pack_scaled(
    constants: Mapping[str, np.ndarray], matrix: View, zero: str, scales: str, element: WeightElement
) -> ScaledMatrix:
    """(matrix - zero) * scales: `matrix` [K, N] views a constant, the others are [blocks of K or 1, N or 1].

    `zero` is "" if there is none. The difference fits `element`.
    """
    depth, columns = matrix.shape
    groups = -(-columns // COLUMNS)
    factors = constants[scales]
    name = f"{matrix.tensor}|{element}|{','.join(map(str, matrix.attribute))}|{zero}"
    by = f"{matrix.tensor}|scales|{scales}|{columns}"
    zeros = constants[zero] if zero else None
    fill = partial(_fill_codes, codes=constants[matrix.tensor], matrix=matrix, zeros=zeros, element=element)
    packed = {
        name: PackedConstant(groups * depth * COLUMNS * ELEMENT_BYTES[element], fill, matrix.tensor),
        by: PackedConstant(
            4 * len(factors) * groups * COLUMNS, partial(_fill_scales, scales=factors, n=columns)
        ),
    }
    return ScaledMatrix(name, by, element, depth // len(factors), packed)


def _fill_codes(
    memory: np.ndarray, codes: np.ndarray, matrix: View, zeros: np.ndarray | None, element: WeightElement
) -> None:
    depth, columns = matrix.shape
    kind = np.dtype("uint16" if "float" in element else element)
    out = memory.view(kind).reshape(-1, depth, COLUMNS)
    out[-1] = 0
    values = read_view(codes, matrix)
    if "float" in element:
        values = values.view(kind)  # unchanged bits
    less = (
        None
        if zeros is None
        else np.broadcast_to(repeat_blocks(zeros, (depth, zeros.shape[1])), matrix.shape)
    )
    for group, panel in enumerate(out):  # group by group, to avoid a second copy
        own = slice(group * COLUMNS, min((group + 1) * COLUMNS, columns))
        part = values[:, own]
        panel[:, : part.shape[1]] = part if less is None else part.astype(np.int16) - less[:, own]


def _fill_scales(memory: np.ndarray, scales: np.ndarray, n: int) -> None:
    out = memory.view(np.float32).reshape(len(scales), -1)
    out[:, :n] = scales
    out[:, n:] = 0.0
