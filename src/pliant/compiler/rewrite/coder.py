"""Encode weight matrices of a model in k-bit codes, each matrix once."""

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, final

import numpy as np
import xxhash

from pliant.arrays import Float32
from pliant.store.coding.matrix import CodedMatrix, code_matrix
from pliant.system import trim_heap

MIN_ROWS, MIN_COLUMNS, MIN_WEIGHTS = 32, 16, 4096
"""The smallest matrix to code: a smaller one fills no group, or has fewer than 64 weights for each of 64
centroids.
"""

_MOST_OUTLIERS = 16
"""A matrix with more than one outlier in this many weights is smaller uncoded."""

_DROP_EVERY_BYTES = 1 << 22


def is_large(depth: int, columns: int) -> bool:
    """Whether a matrix is large enough for a form of its own."""
    return depth >= MIN_ROWS and columns >= MIN_COLUMNS and depth * columns >= MIN_WEIGHTS


InputMoments = Mapping[bytes, Float32[np.ndarray, "K K"]]
"""X' X of the rows X that each matrix is multiplied with on some examples, by `matrix_digest`."""


def matrix_digest(matrix: Float32[np.ndarray, "K N"]) -> bytes:
    """A digest of the values and the shape."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(matrix).data) + repr(matrix.shape).encode()


class MatrixCoder(Protocol):
    """Encodes constant matrices in k-bit codes."""

    bits: int

    def is_worth_coding(self, depth: int, columns: int) -> bool:
        """Whether a matrix of this shape is coded at all."""

    def code(
        self, source: np.ndarray, how: Hashable, read: Callable[[np.ndarray], np.ndarray], /
    ) -> CodedMatrix | None:
        """`read(source)`, float32 [K, N], in codes; None if it stays uncoded."""

    def drop_pages(self) -> None:
        """Free the memory of source pages and of temporary arrays."""


@final
class CachingCoder:
    """Encodes matrices in `bits`; a matrix coded for one shape of a model is reused for all others.

    A matrix is identified by its source array and `how`. `drop_pages` lets the system reclaim the pages of
    mapped source arrays. `moments` returns those to code a matrix for, by its digest, and is called once for
    equal matrices; for products in int8, `steps` are those of the largest centroid (see `code_matrix`).
    """

    def __init__(
        self,
        bits: int,
        drop_pages: Callable[[], None] = lambda: None,
        moments: Callable[[bytes], Float32[np.ndarray, "K K"] | None] | None = None,
        steps: int | None = None,
    ) -> None:
        self.bits, self._steps = bits, steps
        self._drop_pages, self._moments = drop_pages, moments
        self._known: dict[Hashable, tuple[weakref.ref[np.ndarray], CodedMatrix | None]] = {}
        self._by_digest: dict[bytes, CodedMatrix] = {}  # of those coded for moments
        self._read_bytes = 0

    def code(
        self, source: np.ndarray, how: Hashable, read: Callable[[np.ndarray], np.ndarray]
    ) -> CodedMatrix | None:
        """`read(source)`, float32 [K, N], in codes; None if that is not smaller, or values are not finite.

        `how` identifies the function `read`.
        """
        key = (id(source), how)
        known = self._known.get(key)
        if known is None or known[0]() is not source:
            known = self._known[key] = (weakref.ref(source), self._coded(read(source)))
        return known[1]

    def is_worth_coding(self, depth: int, columns: int) -> bool:
        """Whether a matrix is large enough for a code of its own."""
        return is_large(depth, columns)

    def drop_pages(self) -> None:
        """Free the memory of source pages and of temporary arrays."""
        self._drop_pages()
        trim_heap()
        self._read_bytes = 0

    def _coded(self, matrix: np.ndarray) -> CodedMatrix | None:
        coded = None
        if np.isfinite(matrix).all():
            coded = self._coded_for_inputs(matrix)
        self._read_bytes += matrix.nbytes
        if self._read_bytes >= _DROP_EVERY_BYTES:
            self.drop_pages()
        if coded is None or coded.outlier_values.size * _MOST_OUTLIERS > matrix.size:
            return None
        return coded

    def _coded_for_inputs(self, matrix: np.ndarray) -> CodedMatrix:
        if self._moments is None:
            return code_matrix(matrix, self.bits, None, self._steps)
        x = matrix_digest(matrix)
        if x not in self._by_digest:
            self._by_digest[x] = code_matrix(matrix, self.bits, self._moments(x), self._steps)
        return self._by_digest[x]
