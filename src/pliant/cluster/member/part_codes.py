"""Parts of layers with matrices in a store's codes: compiled on blank codes, filled for each layer."""

from collections.abc import Callable, Hashable, Mapping
from typing import final

import numpy as np

from pliant.compiler.passes.code_weights import code_weights
from pliant.ir.graph import Graph
from pliant.models.encoder.encoder_source import MatrixCodes
from pliant.models.encoder.part_builder import WeightBlock, WeightPiece
from pliant.store.coding.matrix import CodedMatrix, blank_matrix, pack_matrix, saves_bytes

FIELDS = ("planes", "codebook", "outlier_rows", "outlier_offsets", "outlier_values")
CodedConstants = Mapping[str, tuple[str, str]]
"""Graph constants by name: the piece that each belongs to, and which of FIELDS it is."""


def coded_graph(graph: Graph, pieces: Mapping[str, WeightPiece], bits: int) -> tuple[Graph, CodedConstants]:
    """Return `graph` with blank codes of `bits` in place of the matrices of `pieces`, and their constants."""
    coder = _BlankCoder(bits, {id(graph.constants[x]): x for x in pieces if x in graph.constants})
    if not any(saves_bytes(*piece.shape[::-1], bits) for piece in pieces.values() if len(piece.shape) == 2):
        return graph, {}
    made = code_weights(graph, coder)
    names = {id(getattr(m, name)): (piece, name) for piece, m in coder.made.items() for name in FIELDS}
    return made, {x: names[id(array)] for x, array in made.constants.items() if id(array) in names}


def piece_codes(
    piece: WeightPiece, read: Callable[[str], MatrixCodes], prefix: str, bits: int
) -> CodedMatrix:
    """Return a piece's matrix in one layer, its blocks stacked by rows, in the kernels' format."""
    found = [_block(block, read(prefix + (block.name or ""))) for block in piece.blocks]
    first = np.cumsum([0, *(len(one.codes) for one in found)])
    whole = found[0]
    outliers = (
        np.concatenate([one.columns for one in found]),
        np.concatenate([one.rows + start for one, start in zip(found, first, strict=False)]),
        np.concatenate([one.values for one in found]),
    )
    codes = np.concatenate([one.codes for one in found])
    return pack_matrix(codes.T, whole.codebooks[bits], outliers, whole.bits)


def _block(block: WeightBlock, whole: MatrixCodes) -> MatrixCodes:
    assert block.columns is not None, block
    (top, bottom), (left, right) = (
        (block.rows.start, block.rows.stop),
        (block.columns.start, block.columns.stop),
    )
    inside = (whole.rows >= top) & (whole.rows < bottom) & (whole.columns >= left) & (whole.columns < right)
    return MatrixCodes(
        whole.bits,
        whole.codes[top:bottom, left:right],
        whole.codebooks,
        whole.rows[inside] - top,
        whole.columns[inside] - left,
        whole.values[inside],
    )


@final
class _BlankCoder:
    """Gives every matrix its own blank codes; `pieces` are the names of coded matrices by array id."""

    def __init__(self, bits: int, pieces: Mapping[int, str]) -> None:
        self.bits, self._pieces = bits, pieces
        self.made: dict[str, CodedMatrix] = {}

    def is_worth_coding(self, depth: int, columns: int) -> bool:
        return saves_bytes(depth, columns, self.bits)

    def code(
        self, source: np.ndarray, how: Hashable, read: Callable[[np.ndarray], np.ndarray], /
    ) -> CodedMatrix | None:
        piece = self._pieces.get(id(source))
        if piece is None:
            return None
        if piece not in self.made:
            n_out, n_in = source.shape
            self.made[piece] = blank_matrix(n_in, n_out, self.bits)
        return self.made[piece]

    def drop_pages(self) -> None:
        """No pages were read."""
