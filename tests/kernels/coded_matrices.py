"""A made-up layer matrix in slices of any bits, with the float64 matrix that it stands for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pliant.kernels.coded.block_bf16 import decode_table_bf16
from pliant.kernels.coded.decode import decode_table, decode_table_int8, int8_step
from pliant.kernels.coded.gemm import GemmArgs
from pliant.kernels.coded.gemm_args import BF16, BF16_PAIRS, F16, SLICE_DTYPE
from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.store.coding.planes import pack_planes

OTHER_COLUMN_GROUPS, OTHER_ROWS = 2, 32  # of a matrix that stands before this one in each slice


def codebooks(seed: int = 0) -> dict[int, np.ndarray]:
    """Ascending centroids of 1..6 bits, exact in bfloat16."""
    draw = np.random.default_rng(seed)
    out = {}
    for k in range(1, 7):
        values = np.sort(draw.standard_normal(1 << k)).astype(np.float32)
        out[k] = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return out


@dataclass(frozen=True)
class Coded:
    """K x N weights in slices along N, or along K; `alive` keeps the memory that `slices` points into."""

    weights: np.ndarray
    is_outlier: np.ndarray
    slices: np.ndarray
    segment_rows: int
    n_segments: int
    column_groups_per_slice: int
    alive: list[np.ndarray] = field(repr=False)

    def args(
        self,
        a: np.ndarray,
        c: np.ndarray,
        bias: np.ndarray | None = None,
        residual: np.ndarray | None = None,
        activation: int = 0,
    ) -> GemmArgs:
        """A GEMM over all of it; a and c may be views whose rows are longer."""
        return GemmArgs(
            a=a.ctypes.data,
            lda=a.strides[0] // 4,
            c=c.ctypes.data,
            ldc=c.strides[0] // 4,
            n_rows=len(a),
            n_columns=self.weights.shape[1],
            slices=self.slices.ctypes.data,
            first_group=OTHER_COLUMN_GROUPS * OTHER_ROWS // 32,
            first_column_group=OTHER_COLUMN_GROUPS,
            segment_rows=self.segment_rows,
            n_segments=self.n_segments,
            column_groups_per_slice=self.column_groups_per_slice,
            bias=None if bias is None else bias.ctypes.data,
            residual=None if residual is None else residual.ctypes.data,
            ldr=0 if residual is None else residual.strides[0] // 4,
            activation=activation,
        )


def coded(
    isa: Isa,
    rows: int,
    columns: int,
    bits: Sequence[int],
    *,
    along_rows: bool = False,
    outliers: float | Sequence[int] = 0.01,
    seed: int = 0,
    is_int8: bool = False,
    is_bf16: bool = False,
    outlier_scale: float = 4.0,
) -> Coded:
    """One slice for each of `bits`. `outliers` is their share, or their offsets in each column group."""
    draw = np.random.default_rng(seed)
    n = len(bits)
    depth, width = (rows // n, columns) if along_rows else (rows, columns // n)
    groups = width // 16
    books = codebooks(seed)
    step = int8_step(books[6], np.zeros(0, np.float32), isa)
    by_floats = decode_table_bf16 if is_bf16 else decode_table
    tables = {
        k: decode_table_int8(book, k, isa, step) if is_int8 else by_floats(book, k, isa)
        for k, book in books.items()
    }
    weights = np.zeros((rows, columns), np.float32)
    everywhere = np.zeros((rows, columns), bool)
    slices = np.zeros(n, SLICE_DTYPE)
    alive: list[np.ndarray] = [*tables.values()]

    def keep(array: np.ndarray) -> int:
        copy = aligned_bytes(array.nbytes)
        copy[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        alive.append(copy)
        return int(copy.ctypes.data)

    for s, (row, k) in enumerate(zip(slices, bits, strict=True)):
        row["bits"] = k
        if k <= 6:
            codes = draw.integers(0, 64, (groups, depth, 16)).astype(np.uint8)
            is_outlier = _places(draw, codes.shape, outliers)
            codes[is_outlier] = 0
            exact = (draw.standard_normal(codes.shape) * outlier_scale).astype(np.float32)
            block = np.where(is_outlier, exact, books[k][codes >> (6 - k)])
            other = draw.integers(0, 64, (OTHER_COLUMN_GROUPS * OTHER_ROWS // 32, 32, 16)).astype(np.uint8)
            for q, plane in enumerate(pack_planes(np.concatenate([other, codes.reshape(-1, 32, 16)]))[:k]):
                row["planes"][q] = keep(plane)
            row["table"] = tables[k].ctypes.data
            counts = is_outlier.reshape(groups, -1).sum(1)
            ends = np.concatenate(
                [[5] * (OTHER_COLUMN_GROUPS + 1), 5 + np.cumsum(counts)]
            )  # five of another's
            offsets = [np.flatnonzero(g) for g in is_outlier.reshape(groups, -1)]
            row["outlier_rows"] = keep(ends.astype(np.uint32))
            row["outlier_offsets"] = keep(np.concatenate([[0] * 5, *offsets]).astype(np.uint16))
            row["outlier_values"] = keep(np.concatenate([[99.0] * 5, exact[is_outlier]]).astype(np.float32))
        else:
            is_outlier = np.zeros((groups, depth, 16), bool)
            block, stored = _full(draw, (groups, depth, 16), k)
            before = np.full(OTHER_COLUMN_GROUPS * OTHER_ROWS * 16, 77, stored.dtype)
            if k == BF16_PAIRS:
                stored = stored.reshape(groups, depth // 2, 2, 16).transpose(0, 1, 3, 2)
            row["full"] = keep(np.concatenate([before, stored.reshape(-1)]))
        place = slice(s * depth, (s + 1) * depth), slice(None)
        if not along_rows:
            place = slice(None), slice(s * width, (s + 1) * width)
        weights[place] = block.transpose(1, 0, 2).reshape(depth, width)
        everywhere[place] = is_outlier.transpose(1, 0, 2).reshape(depth, width)
    return Coded(weights, everywhere, slices, depth, n if along_rows else 1, groups, alive)


def _places(draw: np.random.Generator, shape: tuple[int, ...], outliers: float | Sequence[int]) -> np.ndarray:
    if isinstance(outliers, float):
        return draw.random(shape) < outliers
    flat = np.zeros((shape[0], shape[1] * 16), bool)
    flat[:, list(outliers)] = True
    return flat.reshape(shape)


def _full(draw: np.random.Generator, shape: tuple[int, ...], bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights, and what is stored of them."""
    values = draw.standard_normal(shape).astype(np.float32)
    if bits == F16:
        half = values.astype(np.float16)
        half.reshape(-1)[:2] = (6e-8, -3e-5)  # subnormal
        return half.astype(np.float32), half.view(np.uint16)
    if bits in (BF16, BF16_PAIRS):
        words = (values.view(np.uint32) >> 16).astype(np.uint16)
        return (words.astype(np.uint32) << 16).view(np.float32), words
    return values, values
