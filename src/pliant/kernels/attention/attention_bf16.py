"""Attention's two products in tiles of bfloat16, each number as the sum of two: for one head and some rows.

Lanes are query rows, as in vectors: scores are keys times queries, outputs are columns of values times
weights. Scratch for T tokens (T' of them with padding), D columns of a key, E of a value, B rows in the
largest block and R in this one; [2] are upper and lower parts, "pairs" two bfloat16 in 32 bits:

    keys    [T][2][D]                bfloat16
    values  [E][2][T']               bfloat16
    scores  [T' / 16][R / 16][16][16]  then their exponentials
    weights [2][R / 16][T' / 2][16]  pairs of them
    queries [2][R / 16][D / 2][16]   pairs of scale * log2(e) * q
    sums    [E / 16][R / 16][16][16]
    outputs [R][E]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.kernels.attention.attention_steps import (
    QUAD,
    BlockShape,
    Scratch,
    padded,
    quad_of_rows,
    rows_at,
    store_rows,
    transpose,
)
from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value
from pliant.kernels.product.bf16_pairs import round_pairs, round_row, split_floats, store_parts
from pliant.kernels.tiles.tile_rows import LeftRows, multiply_rows

_GROUP = 16
_TOKENS = 32
"""Tokens, and columns of keys, are padded to a multiple of this."""
_AT_ONCE = 8
"""Tokens whose values are transposed at a time."""

StridedRows = tuple[Value, Value]
"""The first row, and the row stride."""


@dataclass(frozen=True, slots=True)
class TiledScratch:
    """Addresses of the arrays; `plain` has those that vectors work on."""

    plain: Scratch
    weights: Value
    sums: Value
    tokens: Value


def tiled_floats(key_dim: int, value_dim: int, n_tokens: int, block_rows: int) -> int:
    """The size of the arrays of `lay_out_tiles`, in floats."""
    tokens, columns = _pad(n_tokens), padded(value_dim)
    return (_pad(key_dim) + columns + 2 * block_rows) * tokens + (_pad(key_dim) + 2 * columns) * block_rows


def lay_out_tiles(f: Function, base: Value, n_tokens: Value, shape: BlockShape) -> TiledScratch:
    """The addresses of the arrays in a thread's scratch."""
    tokens, rows = (n_tokens + (_TOKENS - 1)) & -_TOKENS, shape.block_rows
    values = f.at(base, tokens * _pad(shape.key_dim))
    scores = f.at(values, tokens * shape.values)
    weights = f.at(scores, tokens * rows)
    queries = f.at(weights, tokens * rows)
    sums = f.at(queries, _pad(shape.key_dim) * rows)
    outputs = f.at(sums, shape.values * rows)
    return TiledScratch(Scratch(base, values, scores, queries, outputs), weights, sums, tokens)


def copy_to_tiles(
    f: Function,
    k: StridedRows,
    v: StridedRows,
    n_tokens: Value,
    at: TiledScratch,
    shape: BlockShape,
) -> None:
    """Copy a head's keys and values into scratch; each is given as its first row and the row stride."""
    columns = _pad(shape.key_dim)
    with f.each(0, n_tokens) as token:
        row, to = f.at(k[0], token * k[1]), f.at(at.plain.keys, token * columns)
        for column in range(0, columns, 2 * f.lanes):
            low, high = (split_floats(f, _columns(f, row, column + i, shape.key_dim)) for i in (0, f.lanes))
            for part, two in enumerate(zip(low, high, strict=True)):
                f.store(round_row(f, *two), f.at(to, (part * columns + column) // 2))
    with f.each(0, at.tokens, _AT_ONCE) as token:
        for column in range(0, shape.values, f.lanes):
            rows = [
                _token_columns(f, v, token + i, n_tokens, column, shape.value_dim) for i in range(_AT_ONCE)
            ]
            for part, of_rows in enumerate(zip(*(split_floats(f, x) for x in rows), strict=True)):
                pairs = [round_pairs(f, *of_rows[i : i + 2]) for i in range(0, _AT_ONCE, 2)]
                four = transpose(f, [f.cast("bitcast", x, f.vec) for x in pairs])
                for i in range(f.lanes):
                    words = f.shuffle(four[i % QUAD], None, range(i & -QUAD, (i & -QUAD) + QUAD))
                    place = (at.tokens >> 1) * ((column + i) * 2 + part) + (token >> 1)
                    f.store(words, f.at(at.plain.values, place))


def score_in_tiles(
    f: Function,
    shape: BlockShape,
    config: Value,
    q: StridedRows,
    rows: Sequence[Value],
    scale: Value,
    n_keys: Value,
    at: TiledScratch,
) -> list[Value]:
    """scores of `rows` of q with all keys, and their maxima."""
    columns = _pad(shape.key_dim)
    _fill_queries(f, shape, q, rows, scale, at)
    keys = LeftRows(at.plain.keys, f.const(4 * columns), f.const(2 * columns))
    queries = [_group(f, at.plain.queries, f.const(columns // 2), i) for i in range(2 * shape.vectors)]
    one = f.const(1, "i1")
    upper, lower = queries[: shape.vectors], queries[shape.vectors :]
    words = f.const(columns // 2)
    multiply_rows(f, "bf16", config, keys, upper, at.plain.scores, n_keys, words, one, 2, lower)
    with f.loop(0, n_keys, carry=[f.const(float("-inf"), f.vec)] * shape.vectors) as loop:
        found = [f.load(shape.score(f, at.plain, loop.index, v), f.vec) for v in range(shape.vectors)]
        loop.carry([vmath.largest(f, x, top) for x, top in zip(found, loop.carried, strict=True)])
    return loop.carried


def weigh_in_tiles(
    f: Function,
    shape: BlockShape,
    config: Value,
    n_keys: Value,
    at: TiledScratch,
    shares: Sequence[Value],
    empty: Sequence[Value],
) -> None:
    """outputs[row][column]: the values weighted by the exponentials, times the rows' shares.

    Rows whose `empty` bit is set are zero.
    """
    zero, pairs, whole = f.const(0.0, f.vec), (n_keys + 1) >> 1, at.tokens >> 1
    with f.when((n_keys & 1).compare("ne", 0)):
        for v in range(shape.vectors):
            f.store(zero, shape.score(f, at.plain, n_keys, v))
    groups = [_group(f, at.weights, whole, i) for i in range(2 * shape.vectors)]
    with f.each(0, pairs) as pair:
        for v in range(shape.vectors):
            two = [f.load(shape.score(f, at.plain, pair * 2 + i, v), f.vec) for i in range(2)]
            store_parts(f, two, [f.at(groups[p * shape.vectors + v], pair * _GROUP) for p in range(2)])
    values = LeftRows(at.plain.values, at.tokens * 4, at.tokens * 2)
    upper, lower, one = groups[: shape.vectors], groups[shape.vectors :], f.const(1, "i1")
    columns = f.const(shape.values)
    multiply_rows(f, "bf16", config, values, upper, at.sums, columns, pairs, one, 2, lower)
    with f.each(0, shape.values, QUAD) as column:
        for v, share in enumerate(shares):
            block = ((column >> 4) * shape.vectors + v) * (_GROUP * _GROUP)
            first = block + (column & (_GROUP - 1)) * _GROUP
            four = [f.load(f.at(at.sums, first + i * _GROUP), f.vec) * share for i in range(QUAD)]
            store_rows(f, shape, [f.select(empty[v], zero, x) for x in four], v, column, at.plain.outputs)


def _fill_queries(
    f: Function, shape: BlockShape, q: StridedRows, rows: Sequence[Value], scale: Value, at: TiledScratch
) -> None:
    factor, columns = f.splat(scale), _pad(shape.key_dim)
    whole, words = shape.key_dim // QUAD * QUAD, f.const(columns // 2)
    for v in range(shape.vectors):
        starts = [f.at(q[0], row * q[1]) for row in rows[v * f.lanes : (v + 1) * f.lanes]]
        groups = [_group(f, at.plain.queries, words, p * shape.vectors + v) for p in range(2)]
        with f.each(0, whole, QUAD) as column:
            quad = [x * factor for x in quad_of_rows(f, starts, column)]
            for i in (0, 2):
                store_parts(f, quad[i : i + 2], [f.at(g, (column + i) * (_GROUP // 2)) for g in groups])
        for last in range(whole, columns, 2):
            two = [
                rows_at(f, starts, f.const(c)) * factor if c < shape.key_dim else f.const(0.0, f.vec)
                for c in (last, last + 1)
            ]
            store_parts(f, two, [f.at(g, last * (_GROUP // 2)) for g in groups])


def _group(f: Function, first: Value, words: Value, i: int) -> Value:
    """The i-th column group of pairs: the upper parts of all vectors of rows come first."""
    return f.at(first, words * (i * _GROUP))


def _columns(f: Function, row: Value, first: int, n: int) -> Value:
    """A vector of a row's columns, zeros from column n on."""
    if first + f.lanes <= n:
        return f.load(f.at(row, first), f.vec)
    x = f.const(0.0, f.vec)
    for i in range(max(n - first, 0)):
        x = f.insert(x, f.load(f.at(row, first + i)), i)
    return x


def _token_columns(f: Function, v: StridedRows, token: Value, n_tokens: Value, first: int, n: int) -> Value:
    """As `_columns`, of a token; zeros if there is none."""
    row = f.at(v[0], f.least(token, n_tokens - 1) * v[1])
    return f.select(f.splat(token < n_tokens), _columns(f, row, first, n), f.const(0.0, f.vec))


def _pad(n: int) -> int:
    return -(-n // _TOKENS) * _TOKENS
