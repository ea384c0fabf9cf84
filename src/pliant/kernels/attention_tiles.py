"""The steps of attention for one head and one block of query rows. Knows scratch, nothing of heads or units.

Scratch, in floats for T tokens, D columns a head, B rows in the largest block, R rows in this one:

    keys    [T][D]        the head's k
    values  [D/4][T][4]   the head's v, by quads of columns
    scores  [T][R]        first scores, then their exponentials
    queries [D][R]        scale * log2(e) * q, rows in lanes
    outputs [R][D]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.kernels import vmath
from pliant.kernels.emit import Function
from pliant.kernels.values import Value, vector

QUAD = 4
_FOUR_FLOATS = vector(QUAD, "float")
_UNROLL = 4


@dataclass(frozen=True, slots=True)
class Strip:
    """Sizes of one compiled variant: `vectors` of rows, `head_dim` columns, `block_rows` of the largest."""

    head_dim: int
    vectors: int
    block_rows: int
    lanes: int
    registers: int

    @property
    def rows(self) -> int:
        return self.vectors * self.lanes

    @property
    def quads(self) -> int:
        """Quads of keys or columns a tile takes beside the vectors, so that sums fill the registers."""
        most = self.registers // 16
        return most if self.vectors > 1 else 2 * most


@dataclass(frozen=True, slots=True)
class Scratch:
    """Addresses of the five arrays."""

    keys: Value
    values: Value
    scores: Value
    queries: Value
    outputs: Value


def lay_out(f: Function, base: Value, n_tokens: Value, head_dim: int, block_rows: int) -> Scratch:
    """Where the arrays lie in a thread's scratch; `scratch_floats` says how much they take."""
    values = f.at(base, n_tokens * head_dim)
    scores = f.at(values, n_tokens * head_dim)
    queries = f.at(scores, n_tokens * block_rows)
    return Scratch(base, values, scores, queries, f.at(queries, block_rows * head_dim))


def scratch_floats(head_dim: int, n_tokens: int, block_rows: int) -> int:
    """The size of what `lay_out` places."""
    return 2 * head_dim * n_tokens + block_rows * n_tokens + 2 * block_rows * head_dim


def copy_head(f: Function, qkv: Value, ld: Value, n_tokens: Value, to: Scratch, head_dim: int) -> None:
    """Bring a head's keys and values into scratch; `qkv` is the head's first column in row 0."""
    with f.each(0, n_tokens) as token:
        row = f.at(qkv, token * ld)
        for column in range(0, head_dim, f.lanes):
            key = f.load(f.at(row, head_dim + column), f.vec)
            f.store(key, f.at(to.keys, token * head_dim + column))
        for quad in range(head_dim // QUAD):
            value = f.load(f.at(row, 2 * head_dim + quad * QUAD), _FOUR_FLOATS)
            f.store(value, f.at(to.values, (n_tokens * quad + token) * QUAD))


def fill_queries(
    f: Function, strip: Strip, q: Value, ld: Value, rows: Sequence[Value], scale: Value, to: Value
) -> None:
    """Transpose `rows` of q, one a lane, into [column][lane], times `scale`."""
    factor = f.splat(scale)
    for v in range(strip.vectors):
        starts = [f.at(q, row * ld) for row in rows[v * f.lanes : (v + 1) * f.lanes]]
        with f.each(0, strip.head_dim, QUAD) as column:
            parts = [f.load(f.at(start, column), _FOUR_FLOATS) for start in starts]
            wide = [concatenate(f, parts[i::QUAD]) for i in range(QUAD)]
            for i, lanes in enumerate(transpose(f, wide)):
                f.store(lanes * factor, f.at(to, (column + i) * strip.rows + v * f.lanes))


def score(f: Function, strip: Strip, n_tokens: Value, at: Scratch) -> list[Value]:
    """scores[key][row] for all keys; the maxima over keys, one vector for each vector of rows."""
    keys = QUAD * strip.quads
    lowest = [f.const(float("-inf"), f.vec)] * strip.vectors

    def by_tiles() -> list[Value]:
        # The last tile may overlap the one before: scores are computed twice, never beyond the end.
        with f.loop(0, n_tokens, keys, lowest) as turn:
            first = f.least(turn.index, n_tokens - keys)
            turn.carry(_score_tile(f, strip, first, keys, at, turn.carried))
        return turn.carried

    def one_by_one() -> list[Value]:
        with f.loop(0, n_tokens, 1, lowest) as turn:
            turn.carry(_score_tile(f, strip, turn.index, 1, at, turn.carried))
        return turn.carried

    return f.choose(n_tokens >= keys, by_tiles, one_by_one)


def exponentiate(
    f: Function, strip: Strip, n_tokens: Value, at: Scratch, tops: Sequence[Value]
) -> list[Value]:
    """scores become 2**(score - top); 1 over their sums, one vector for each vector of rows."""
    with f.loop(0, n_tokens, 1, [f.const(0, f.vec)] * strip.vectors) as turn:
        sums = []
        for v, (top, total) in enumerate(zip(tops, turn.carried, strict=True)):
            place = f.at(at.scores, turn.index * strip.rows + v * f.lanes)
            weight = vmath.exp2_nonpositive(f, f.load(place, f.vec) - top)
            f.store(weight, place)
            sums.append(total + weight)
        turn.carry(sums)
    return [f.const(1.0, f.vec) / total for total in turn.carried]


def weigh(f: Function, strip: Strip, n_tokens: Value, at: Scratch, shares: Sequence[Value]) -> None:
    """outputs[row][column]: the values weighted by the exponentials, times the rows' shares."""
    with f.each(0, strip.head_dim, QUAD * strip.quads) as column:
        start = f.at(at.values, n_tokens * column)
        with f.loop(0, n_tokens, 1, [f.const(0, f.vec)] * (QUAD * strip.quads * strip.vectors)) as turn:
            weights = [
                f.load(f.at(at.scores, turn.index * strip.rows + v * f.lanes), f.vec)
                for v in range(strip.vectors)
            ]
            sums = list(turn.carried)
            for c in range(QUAD * strip.quads):
                quad = f.at(start, (n_tokens * (c // QUAD) + turn.index) * QUAD)
                value = f.splat(f.load(f.at(quad, c % QUAD)))
                for v, weight in enumerate(weights):
                    i = c * strip.vectors + v
                    sums[i] = f.fma(weight, value, sums[i])
            turn.carry(sums)
        for q in range(strip.quads):
            for v, share in enumerate(shares):
                four = [turn.carried[(q * QUAD + i) * strip.vectors + v] * share for i in range(QUAD)]
                _store_rows(f, strip, four, v, column + q * QUAD, at.outputs)


def write_rows(f: Function, strip: Strip, count: Value, outputs: Value, out: Value, ld: Value) -> None:
    """Copy the first `count` rows of outputs to rows of `out`."""
    with f.each(0, count) as row:
        for column in range(0, strip.head_dim, f.lanes):
            part = f.load(f.at(outputs, row * strip.head_dim + column), f.vec)
            f.store(part, f.at(out, row * ld + column))


def _score_tile(
    f: Function, strip: Strip, first: Value, keys: int, at: Scratch, tops: Sequence[Value]
) -> list[Value]:
    start = f.at(at.keys, first * strip.head_dim)
    with f.loop(0, strip.head_dim, _UNROLL, [f.const(0, f.vec)] * (keys * strip.vectors)) as turn:
        sums = list(turn.carried)
        for u in range(_UNROLL):
            column = turn.index + u
            queries = [
                f.load(f.at(at.queries, column * strip.rows + v * f.lanes), f.vec)
                for v in range(strip.vectors)
            ]
            for k in range(keys):
                key = f.splat(f.load(f.at(start, column + k * strip.head_dim)))
                for v, query in enumerate(queries):
                    sums[k * strip.vectors + v] = f.fma(query, key, sums[k * strip.vectors + v])
        turn.carry(sums)
    highest = list(tops)
    for i, total in enumerate(turn.carried):
        k, v = divmod(i, strip.vectors)
        f.store(total, f.at(at.scores, (first + k) * strip.rows + v * f.lanes))
        highest[v] = vmath.largest(f, total, highest[v])
    return highest


def _store_rows(f: Function, strip: Strip, four: Sequence[Value], v: int, column: Value, to: Value) -> None:
    """Four columns, rows in lanes, to [row][column]."""
    for i, wide in enumerate(transpose(f, four)):
        for part in range(f.lanes // QUAD):
            row = v * f.lanes + part * QUAD + i
            values = f.shuffle(wide, None, range(part * QUAD, (part + 1) * QUAD)) if f.lanes > QUAD else wide
            f.store(values, f.at(to, column + row * strip.head_dim))


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
