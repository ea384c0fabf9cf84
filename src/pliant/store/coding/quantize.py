"""Quantize float weights to 64 sorted codes whose top k bits are the k-bit version."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never, final

import numpy as np

from pliant.arrays import Bool, Float32, Float64, Int, UInt8
from pliant.errors import StoreError
from pliant.ir.bitwidths import PLANES
from pliant.models.word_table import TABLE_BITS, QuantizedTable, pack_codes

LEVELS = 1 << PLANES
LOG_LIKELIHOOD_THRESHOLD = -4.0
LLOYD_TOLERANCE = 1e-9  # relative fall of the squared error over 64 rounds below which Lloyd has converged
LLOYD_ROUNDS = 20_000
Quantizer = Literal["lloyd", "equal-population"]
Ascending = Float32[np.ndarray, " n"] | Float64[np.ndarray, " n"]
_PART, _BLOCK = 1 << 16, 64


@dataclass(frozen=True, slots=True)
class LayerCode:
    """One layer's code: the ascending 64 centroids, the means of merged cells for each k, and the normal.

    `codebooks[k]` has 2**k ascending values, all exact in bfloat16; `codebooks[6]` are the centroids.
    `mean` and `std` are of the normal fitted to all weights, outliers included.
    """

    codebooks: Mapping[int, Float32[np.ndarray, " levels"]]
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """Weight i keeps its exact value if `is_outlier[i]`, else it is `codebooks[k][codes[i] >> 6 - k]`."""

    code: LayerCode
    codes: UInt8[np.ndarray, " n"]
    is_outlier: Bool[np.ndarray, " n"]


def fit(values: Float32[np.ndarray, " n"], quantizer: Quantizer = "lloyd") -> QuantizedWeights:
    """Fit one normal, separate its outliers, and code the rest (STI section 6).

    An outlier is a weight whose natural log density under the fitted normal is below -4. Outliers also get
    the code of the nearest cell, but their exact value is used. Raises StoreError when there is nothing to
    fit or a value is not finite.
    """
    if values.size == 0 or not np.isfinite(values).all():
        raise StoreError(f"{values.size} weights cannot be quantized: it takes at least one, all finite.")
    mean = float(values.mean(dtype=np.float64))
    squares = sum(float(np.square(part - np.float64(mean)).sum()) for part in _parts(values))
    std = math.sqrt(squares / values.size)
    is_outlier = np.empty(values.size, bool)
    for part, out in zip(_parts(values), _parts(is_outlier), strict=True):
        out[:] = np.abs(part - np.float64(mean)) > outlier_distance(std)
    order = values[~is_outlier]
    order.sort()
    match quantizer:
        case "equal-population":
            edges = equal_population_edges(order.size)
        case "lloyd":
            edges = lloyd_edges(order)
        case _:
            assert_never(quantizer)
    sums, borders = _PrefixSums(order), _borders(order, edges)
    codebooks = {k: to_bfloat16(_means(sums, edges[:: 1 << (PLANES - k)])) for k in range(1, PLANES + 1)}
    del order, sums  # they take most of the memory
    codes = _cell_codes(values, borders) if quantizer == "lloyd" else _rank_codes(values, is_outlier, mean)
    return QuantizedWeights(LayerCode(codebooks, mean, std), codes, is_outlier)


def outlier_distance(std: float) -> float:
    """The distance from the mean at which a normal's natural log density falls to the threshold of -4.

    log N(x) = -log(std sqrt(2 pi)) - (x - mean)^2 / (2 std^2). The density depends on the weights'
    unit, as in STI and GOBO: at std 0.04 the distance is 3.5 std; from std 21.8 on every weight would be an
    outlier. Weights without spread have none.
    """
    if std == 0:
        return math.inf
    room = -math.log(std * math.sqrt(2 * math.pi)) - LOG_LIKELIHOOD_THRESHOLD
    return std * math.sqrt(max(0.0, 2 * room))


def equal_population_edges(n: int, bits: int = PLANES) -> Int[np.ndarray, " edges"]:
    """The start of each of 2**bits equally populated cells among n sorted weights; the last edge is n.

    Rank r falls into cell floor(2**bits r / n); the edges at fewer bits are a subset of these.
    """
    return -(-np.arange((1 << bits) + 1, dtype=np.int64) * n // (1 << bits))


def lloyd_edges(order: Ascending, levels: int = LEVELS) -> Int[np.ndarray, " edges"]:
    """Cell edges of Lloyd's quantizer (Lloyd 1982, method I) over the ascending weights `order`.

    Starts from cells of equal mass under the cube root of the density (Panter and Dite 1951) and
    alternates means and midpoints over prefix sums, so a round costs 63 binary searches. Stops when
    no edge moves or 64 rounds lower the squared error by less than LLOYD_TOLERANCE of itself. At most
    `levels` distinct weights get a cell each. Deterministic.
    """
    n = order.size
    if n == 0:
        return np.zeros(levels + 1, np.int64)
    is_new = order[1:] != order[:-1]
    if np.count_nonzero(is_new) < levels:
        starts = np.concatenate([[0], np.flatnonzero(is_new) + 1, [n]])
        # A cell for every distinct value, with empty cells spread evenly, so that values stay distinct at as
        # few bits as possible.
        return starts[-(-np.arange(levels + 1) * (starts.size - 1) // levels)]
    sums = _PrefixSums(order)
    edges = _cube_root_edges(order, levels)
    total = sum(float(np.square(part, dtype=np.float64).sum()) for part in _parts(order))
    explained = -math.inf
    for round_ in range(LLOYD_ROUNDS):
        means = _means(sums, edges)
        moved = np.concatenate([[0], _places(order, (means[1:] + means[:-1]) / 2), [n]])
        if np.array_equal(moved, edges):
            break
        edges = moved
        if round_ % 64 == 63:
            now = _explained(sums, edges)
            if now - explained < LLOYD_TOLERANCE * (total - now):
                break
            explained = now
    return edges


def quantize_table(table: Float32[np.ndarray, "rows columns"]) -> QuantizedTable:
    """An embedding table in 6-bit codes: exact when it has at most 64 distinct values, else 64-level Lloyd.

    The codebook keeps float32 here. Raises StoreError when a value is not finite.
    """
    if table.size == 0 or not np.isfinite(table).all():
        raise StoreError(f"an embedding table of shape {list(table.shape)} needs values, all of them finite.")
    order = np.sort(table, axis=None)
    edges = lloyd_edges(order)
    codebook = _means(_PrefixSums(order), edges).astype(np.float32)
    codes = _cell_codes(table.reshape(-1), _borders(order, edges)).reshape(table.shape)
    assert LEVELS == 1 << TABLE_BITS
    return QuantizedTable(pack_codes(codes), codebook, table.shape[1])


def to_bfloat16(values: Float64[np.ndarray, " n"] | Float32[np.ndarray, " n"]) -> Float32[np.ndarray, " n"]:
    """Round to the nearest bfloat16, ties to even; the result is float32 with its low 16 bits zero."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)


def _rank_codes(
    values: Float32[np.ndarray, " n"], is_outlier: Bool[np.ndarray, " n"], mean: float
) -> UInt8[np.ndarray, " n"]:
    """Code by rank among the inliers, equal weights in order of position; outliers take the end cells."""
    codes = np.where(values > mean, LEVELS - 1, 0).astype(np.uint8)
    inliers = np.flatnonzero(~is_outlier)
    ranks = np.argsort(values[inliers], kind="stable")
    codes[inliers[ranks]] = (np.arange(inliers.size, dtype=np.int64) << PLANES) // max(1, inliers.size)
    return codes


def _cell_codes(
    values: Float32[np.ndarray, " n"], borders: Float32[np.ndarray, " inner"]
) -> UInt8[np.ndarray, " n"]:
    codes = np.empty(values.size, np.uint8)
    for part, out in zip(_parts(values), _parts(codes), strict=True):
        out[:] = np.searchsorted(borders, part, side="right")
    return codes


def _borders(order: Ascending, edges: Int[np.ndarray, " edges"]) -> Float32[np.ndarray, " inner"]:
    """The least weight of each cell but the first; an empty cell takes the next cell's, or +inf at the end.

    Without weights, the first cell takes everything.
    """
    inner = edges[1:-1]
    if order.size == 0:
        return np.full(inner.size, np.inf, np.float32)
    smallest: np.ndarray = np.where(inner < order.size, order[np.minimum(inner, order.size - 1)], np.inf)
    return smallest.astype(np.float32)


@final
class _PrefixSums:
    """Sums of the first weights of `order`, in float64, in a 64th of its memory."""

    def __init__(self, order: Ascending) -> None:
        self.order = order
        blocks = [part.reshape(-1, _BLOCK).sum(1, np.float64) for part in _parts(order[: _whole(order.size)])]
        self._before = np.concatenate([[0.0], np.cumsum(np.concatenate([[], *blocks]))])

    def of(self, edges: Int[np.ndarray, " edges"]) -> Float64[np.ndarray, " edges"]:
        """The sum of `order[:edge]` for each edge."""
        if self.order.size == 0:
            return np.zeros(edges.size)
        at = (edges // _BLOCK * _BLOCK)[:, None] + np.arange(_BLOCK)
        rest = self.order[np.minimum(at, self.order.size - 1)]
        sums: np.ndarray = self._before[edges // _BLOCK] + rest.sum(1, np.float64, where=at < edges[:, None])
        return sums


def _means(sums: _PrefixSums, edges: Int[np.ndarray, " edges"]) -> Float64[np.ndarray, " levels"]:
    """Arithmetic mean of each cell; an empty cell takes the weight at its edge, which keeps the order."""
    count, order = np.diff(edges), sums.order
    if order.size == 0:
        return np.zeros(count.size)
    means = np.diff(sums.of(edges)) / np.maximum(1, count)
    low, high = order[np.minimum(edges[:-1], order.size - 1)], order[np.maximum(edges[1:], 1) - 1]
    # Prefix sums round, so a cell of equal weights could leave its own range by one part in 10^12.
    kept: np.ndarray = np.where(count == 0, low, np.clip(means, np.minimum(low, high), np.maximum(low, high)))
    return kept


def _explained(sums: _PrefixSums, edges: Int[np.ndarray, " edges"]) -> float:
    """Sum over cells of count times squared mean: the squared error is the sum of squares minus this."""
    return float((np.diff(sums.of(edges)) ** 2 / np.maximum(1, np.diff(edges))).sum())


def _places(order: Ascending, values: Float64[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """How many of `order` are less than each value; numpy would search a float32 array by a float64 copy."""
    if order.dtype == np.float32:
        narrow = values.astype(np.float32)
        values = np.where(narrow < values, np.nextafter(narrow, np.float32(np.inf)), narrow)
    return np.searchsorted(order, values)


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """Views of 2**16 values at a time, to keep temporary arrays small."""
    for start in range(0, values.size, _PART):
        yield values[start : start + _PART]


def _whole(n: int) -> int:
    return n // _BLOCK * _BLOCK


def _cube_root_edges(order: Ascending, levels: int) -> Int[np.ndarray, " edges"]:
    """Edges with equal mass of density^(1/3), the density taken from a histogram of 512 bins."""
    low, high = float(order[0]), float(order[-1])
    bins = low + (high - low) * np.linspace(0, 1, 513)
    counts = np.diff(_places(order, bins[1:-1]), prepend=0, append=order.size)
    mass = np.concatenate([[0.0], np.cumsum(np.maximum(counts, 0) ** (1 / 3))])
    inner = np.interp(np.linspace(0, mass[-1], levels + 1)[1:-1], mass, bins)
    return np.concatenate([[0], _places(order, inner), [order.size]])
