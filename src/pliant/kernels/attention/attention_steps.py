"""The steps of attention for one head and one block of query rows.

Scratch, in floats for T tokens, D columns of a key and E of a value (both padded with zeros to a multiple of
16), B rows in the largest block, R rows in this one:

    keys    [T][D]        the head's k
    values  [E/4][T][4]   the head's v, by quads of columns
    scores  [T][R]        first scores, then their exponentials
    queries [D][R]        scale * log2(e) * q, rows in lanes
    outputs [R][E]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

QUAD = 4
_FOUR_FLOATS = vector(QUAD, "float")
_UNROLL = 4


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of one compiled variant: `vectors` of rows, `key_dim` and `value_dim` columns a head."""

    key_dim: int
    value_dim: int
    vectors: int
    block_rows: int
    lanes: int
    registers: int
    is_tiled: bool = False

    @property
    def rows(self) -> int:
        return self.vectors * self.lanes

    @property
    def keys(self) -> int:
        """Columns of a key in scratch."""
        return padded(self.key_dim)

    @property
    def values(self) -> int:
        """Columns of a value in scratch."""
        return padded(self.value_dim)

    @property
    def quads(self) -> int:
        """Quads of keys or columns per tile, such that the sums fill the registers."""
        most = self.registers // 16
        return most if self.vectors > 1 else 2 * most

    def score(self, f: Function, at: "Scratch", key: Value, v: int) -> Value:
        """The address of a key's scores for a vector of rows."""
        if not self.is_tiled:
            return f.at(at.scores, key * self.rows + v * self.lanes)
        return f.at(at.scores, ((key >> 4) * self.vectors + v) * 256 + (key & 15) * 16)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Addresses of the five arrays."""

    keys: Value
    values: Value
    scores: Value
    queries: Value
    outputs: Value


def padded(columns: int) -> int:
    """The padded number of columns of a head in scratch."""
    return -(-columns // 16) * 16


def lay_out(f: Function, base: Value, n_tokens: Value, shape: BlockShape) -> Scratch:
    """The addresses of the arrays in a thread's scratch; `scratch_floats` is their size."""
    values = f.at(base, n_tokens * shape.keys)
    scores = f.at(values, n_tokens * shape.values)
    queries = f.at(scores, n_tokens * shape.block_rows)
    return Scratch(base, values, scores, queries, f.at(queries, shape.block_rows * shape.keys))


def scratch_floats(key_dim: int, value_dim: int, n_tokens: int, block_rows: int) -> int:
    """The size of the arrays of `lay_out`, in floats."""
    columns = padded(key_dim) + padded(value_dim)
    return columns * n_tokens + block_rows * n_tokens + columns * block_rows


def copy_head(
    f: Function,
    k: tuple[Value, Value],
    v: tuple[Value, Value],
    n_tokens: Value,
    to: Scratch,
    shape: BlockShape,
) -> None:
    """Copy a head's keys and values into scratch; each is given as its first row and the row stride."""
    four = shape.value_dim // QUAD * QUAD
    with f.each(0, n_tokens) as token:
        _copy_row(f, f.at(k[0], token * k[1]), f.at(to.keys, token * shape.keys), shape.key_dim, shape.keys)
        row = f.at(v[0], token * v[1])
        for column in range(0, shape.values, QUAD):
            place = f.at(to.values, (n_tokens * (column // QUAD) + token) * QUAD)
            if column < four:
                f.store(f.load(f.at(row, column), _FOUR_FLOATS), place)
            else:
                _copy_row(f, f.at(row, column), place, max(shape.value_dim - column, 0), QUAD)


def _copy_row(f: Function, row: Value, to: Value, n: int, n_padded: int) -> None:
    """Copy n floats, then write zeros."""
    whole = n // f.lanes * f.lanes
    for column in range(0, whole, f.lanes):
        f.store(f.load(f.at(row, column), f.vec), f.at(to, column))
    for column in range(whole, n_padded):
        x = f.load(f.at(row, column)) if column < n else f.const(0.0, "float")
        f.store(x, f.at(to, column))


def fill_queries(
    f: Function, shape: BlockShape, q: Value, ld: Value, rows: Sequence[Value], scale: Value, to: Value
) -> None:
    """Transpose `rows` of q, one a lane, into [column][lane], times `scale`."""
    factor = f.splat(scale)
    whole = shape.key_dim // QUAD * QUAD
    for v in range(shape.vectors):
        starts = [f.at(q, row * ld) for row in rows[v * f.lanes : (v + 1) * f.lanes]]
        with f.each(0, whole, QUAD) as column:
            for i, lanes in enumerate(quad_of_rows(f, starts, column)):
                f.store(lanes * factor, f.at(to, (column + i) * shape.rows + v * f.lanes))
        for last in range(whole, shape.keys):
            lanes = f.const(0.0, f.vec)
            if last < shape.key_dim:
                lanes = rows_at(f, starts, f.const(last)) * factor
            f.store(lanes, f.at(to, last * shape.rows + v * f.lanes))


def quad_of_rows(f: Function, starts: Sequence[Value], column: Value) -> list[Value]:
    """Four columns from `column` on, of one row per lane."""
    parts = [f.load(f.at(start, column), _FOUR_FLOATS) for start in starts]
    return transpose(f, [concatenate(f, parts[i::QUAD]) for i in range(QUAD)])


def rows_at(f: Function, starts: Sequence[Value], column: Value) -> Value:
    """One column, of one row per lane."""
    lanes = f.const(0.0, f.vec)
    for i, start in enumerate(starts):
        lanes = f.insert(lanes, f.load(f.at(start, column)), i)
    return lanes


def score(f: Function, shape: BlockShape, n_tokens: Value, at: Scratch) -> list[Value]:
    """Compute scores[key][row] for all keys; returns the maxima over keys, one vector per vector of rows."""
    keys = QUAD * shape.quads
    lowest = [f.const(float("-inf"), f.vec)] * shape.vectors

    def by_tiles() -> list[Value]:
        # The last tile may overlap the one before: some scores are computed twice, but none out of bounds.
        with f.loop(0, n_tokens, keys, lowest) as loop:
            first = f.least(loop.index, n_tokens - keys)
            loop.carry(_score_tile(f, shape, first, keys, at, loop.carried))
        return loop.carried

    def one_by_one() -> list[Value]:
        with f.loop(0, n_tokens, 1, lowest) as loop:
            loop.carry(_score_tile(f, shape, loop.index, 1, at, loop.carried))
        return loop.carried

    return f.choose(n_tokens >= keys, by_tiles, one_by_one)


def exponentiate(
    f: Function, shape: BlockShape, n_tokens: Value, at: Scratch, tops: Sequence[Value]
) -> list[Value]:
    """Replace scores by 2**(score - top); returns the reciprocals of their sums, one vector per vector of
    rows.
    """

    def add(vectors: Sequence[int], tops: Sequence[Value]) -> list[Value]:
        with f.loop(0, n_tokens, 1, [f.const(0, f.vec)] * len(vectors)) as loop:
            sums = []
            for v, top, total in zip(vectors, tops, loop.carried, strict=True):
                place = shape.score(f, at, loop.index, v)
                weight = vmath.exp2_nonpositive(f, f.load(place, f.vec) - top)
                f.store(weight, place)
                sums.append(total + weight)
            loop.carry(sums)
        return [f.const(1.0, f.vec) / total for total in loop.carried]

    if shape.registers > 16:
        return add(range(shape.vectors), tops)
    # Registers hold the coefficients of exp2 and one vector of rows; the other vectors are kept in memory.
    places = [f.at(at.outputs, v * f.lanes) for v in range(shape.vectors)]
    for top, place in zip(tops, places, strict=True):
        f.store(top, place)
    for v, place in enumerate(places):
        f.barrier()
        (share,) = add([v], [f.load(place, f.vec)])
        f.store(share, place)
    f.barrier()
    return [f.load(place, f.vec) for place in places]


def weigh(
    f: Function,
    shape: BlockShape,
    n_tokens: Value,
    n_keys: Value,
    at: Scratch,
    shares: Sequence[Value],
    empty: Sequence[Value],
) -> None:
    """Compute outputs[row][column]: the values weighted by the exponentials, times the rows' shares.

    Rows whose `empty` bit is set are zero.
    """
    with f.each(0, shape.values, QUAD * shape.quads) as column:
        start = f.at(at.values, n_tokens * column)
        with f.loop(0, n_keys, 1, [f.const(0, f.vec)] * (QUAD * shape.quads * shape.vectors)) as loop:
            weights = [f.load(shape.score(f, at, loop.index, v), f.vec) for v in range(shape.vectors)]
            sums = list(loop.carried)
            for c in range(QUAD * shape.quads):
                quad = f.at(start, (n_tokens * (c // QUAD) + loop.index) * QUAD)
                value = f.splat(f.load(f.at(quad, c % QUAD)))
                for v, weight in enumerate(weights):
                    i = c * shape.vectors + v
                    sums[i] = f.fma(weight, value, sums[i])
            loop.carry(sums)
        zero = f.const(0.0, f.vec)
        for q in range(shape.quads):
            for v, share in enumerate(shares):
                four = [loop.carried[(q * QUAD + i) * shape.vectors + v] * share for i in range(QUAD)]
                four = [f.select(empty[v], zero, x) for x in four]
                store_rows(f, shape, four, v, column + q * QUAD, at.outputs)


def write_rows(f: Function, shape: BlockShape, count: Value, outputs: Value, out: Value, ld: Value) -> None:
    """Copy the first `count` rows of outputs to rows of `out`."""
    with f.each(0, count) as row:
        _copy_row(f, f.at(outputs, row * shape.values), f.at(out, row * ld), shape.value_dim, shape.value_dim)


def _score_tile(
    f: Function, shape: BlockShape, first: Value, keys: int, at: Scratch, tops: Sequence[Value]
) -> list[Value]:
    start = f.at(at.keys, first * shape.keys)
    with f.loop(0, shape.keys, _UNROLL, [f.const(0, f.vec)] * (keys * shape.vectors)) as loop:
        sums = list(loop.carried)
        for u in range(_UNROLL):
            column = loop.index + u
            queries = [
                f.load(f.at(at.queries, column * shape.rows + v * f.lanes), f.vec)
                for v in range(shape.vectors)
            ]
            for k in range(keys):
                key = f.splat(f.load(f.at(start, column + k * shape.keys)))
                for v, query in enumerate(queries):
                    sums[k * shape.vectors + v] = f.fma(query, key, sums[k * shape.vectors + v])
            if f.isa.name == "neon":
                sums = f.pin(sums)  # else LLVM loads queries of later columns, and short heads spill sums
        loop.carry(sums)
    highest = list(tops)
    for i, total in enumerate(loop.carried):
        k, v = divmod(i, shape.vectors)
        f.store(total, shape.score(f, at, first + k, v))
        highest[v] = vmath.largest(f, total, highest[v])
    return highest


def store_rows(
    f: Function, shape: BlockShape, four: Sequence[Value], v: int, column: Value, to: Value
) -> None:
    """Store four columns, with rows in lanes, to [row][column]."""
    for i, wide in enumerate(transpose(f, four)):
        for part in range(f.lanes // QUAD):
            row = v * f.lanes + part * QUAD + i
            values = f.shuffle(wide, None, range(part * QUAD, (part + 1) * QUAD)) if f.lanes > QUAD else wide
            f.store(values, f.at(to, column + row * shape.values))


def transpose(f: Function, four: Sequence[Value]) -> list[Value]:
    """Transpose the 4 x 4 block in each 128-bit part of four vectors; its own inverse."""
    n, parts = f.lanes, range(0, f.lanes, QUAD)

    def pick(a: Value, b: Value, pattern: Sequence[int]) -> Value:
        return f.shuffle(a, b, [p + i if i < QUAD else n + p + i - QUAD for p in parts for i in pattern])

    low, high = [(0, 4, 1, 5), (2, 6, 3, 7)]
    a, b = pick(four[0], four[1], low), pick(four[2], four[3], low)
    c, d = pick(four[0], four[1], high), pick(four[2], four[3], high)
    first, second = (0, 1, 4, 5), (2, 3, 6, 7)
    return [pick(a, b, first), pick(a, b, second), pick(c, d, first), pick(c, d, second)]


def concatenate(f: Function, parts: Sequence[Value]) -> Value:
    """1, 2 or 4 vectors of four floats as one."""
    while len(parts) > 1:
        n = 2 * int(parts[0].type[1:].split(" ")[0])
        parts = [f.shuffle(a, b, range(n)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
