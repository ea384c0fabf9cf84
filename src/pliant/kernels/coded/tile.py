"""The register tile of a GEMM: a few rows of A times one or three column groups of B."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

COLUMNS = 16
UNROLL = 4

MultiplyAdd = Callable[[Function, Value, Value, Value], Value]
"""(f, a, b, sum) -> sum + a * b, in vectors of floats, or of words of the same size."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows of a full tile and column groups of a panel on one ISA."""

    rows: int
    panel: int


def tiling(isa: Isa) -> Tiling:
    """6 x 16 with 16 registers and FMA, 8 x 48 with 32 registers, 2 x 16 on SSE."""
    match isa.name:
        case "avx512":
            return Tiling(8, 3)
        case "avx2":
            return Tiling(6, 1)
        case "neon":
            return Tiling(6, 1)
        case "x86-64":
            return Tiling(2, 1)


@dataclass(frozen=True, slots=True)
class TileArgs:
    """The operands of a tile: C = start + A @ B + added. Strides in floats.

    `start` is one row (bias or zeros); `added` has rows (residual, or C itself), or is null. 4 * depth bytes
    from `ahead` on are prefetched for the next tile. If a word of A and B is a pair of bfloat16, `depth` and
    `lda` are in words.
    """

    a: Value
    lda: Value
    b: tuple[Value, ...]
    c: Value
    ldc: Value
    start: Value
    added: Value
    added_stride: Value
    depth: Value
    ahead: Value | None = None

    def down(self, f: Function, row: Value) -> "TileArgs":
        """The tile `row` rows further down, without prefetching; a null `added` stays null."""
        return TileArgs(
            a=f.at(self.a, row * self.lda),
            lda=self.lda,
            b=self.b,
            c=f.at(self.c, row * self.ldc),
            ldc=self.ldc,
            start=self.start,
            added=f.select(
                self.added.compare("eq", 0), f.const(0, "ptr"), f.at(self.added, row * self.added_stride)
            ),
            added_stride=self.added_stride,
            depth=self.depth,
        )


def write_tiles(
    module: Module, groups: int, multiply: MultiplyAdd = Function.fma, blocks: MultiplyAdd | None = None
) -> None:
    """Define the tiles of 1 .. full rows by `groups` column groups, for any depth.

    `blocks` multiplies two rows and two words of A with two words and two columns of B, in vectors of four.
    """
    for rows in range(1, tiling(module.isa).rows + 1):
        _write_tile(module, rows, groups, multiply, blocks)


def exchange_halves(f: Function, sums: Sequence[Value], rows: int) -> list[Value]:
    """Convert sums by row to sums of 2 x 2 blocks, and back, by exchanging halves of vectors between two
    rows.

    For rows i and i + 1, columns 0..3, the first block has columns 0 and 1 of both, the second 2 and 3. An
    unpaired last row is unchanged.
    """
    vectors, out = len(sums) // rows, list(sums)
    for i in range(0, rows - 1, 2):
        for v in range(vectors):
            at, below = i * vectors + v, (i + 1) * vectors + v
            out[at] = f.shuffle(sums[at], sums[below], (0, 1, 4, 5))
            out[below] = f.shuffle(sums[at], sums[below], (2, 3, 6, 7))
    return out


def call_rows(
    f: Function, n_rows: Value, at: Callable[[Value], TileArgs], after: Callable[[TileArgs, int], None]
) -> None:
    """Cover `n_rows` rows with tiles; `at(row)` returns the operands of the tile that starts at `row`.

    `after` is called after each tile with its number of rows, while C is in L1. A last tile of fewer than
    half the rows would underuse the multipliers, so it takes rows of the previous tile.
    """
    full = tiling(f.isa).rows
    left = n_rows % full
    is_short = (left * 2 < full) & (left.compare("ne", 0)) & (n_rows > full)
    rest = f.select(is_short, left + full, left)
    first = f.select(rest > full, (rest + 1) >> 1, rest)
    n_full = n_rows - rest

    def tile(rows: int, args: TileArgs) -> None:
        call_tile(f, rows, args)
        after(args, rows)

    with f.each(0, n_full, full) as row:
        tile(full, at(row))
    for rows, start in ((first, n_full), (rest - first, n_full + first)):
        args = at(start)
        f.match(rows, {n: partial(tile, n, args) for n in range(1, full + 1)})


def call_tile(f: Function, rows: int, t: TileArgs) -> None:
    """One tile of `rows` rows."""
    strides = (t.lda, t.ldc, t.added_stride)
    pointers = (t.a, t.c, t.start, t.added)
    f.call(_name(rows, len(t.b)), "void", *pointers, t.ahead or t.b[0], *strides, t.depth, *t.b)


def _name(rows: int, groups: int) -> str:
    return f"tile_{rows}x{groups}"


def _write_tile(
    module: Module, rows: int, groups: int, multiply: MultiplyAdd, blocks: MultiplyAdd | None
) -> None:
    params = [(n, "ptr") for n in ("a", "c", "start", "added", "ahead")]
    params += [(n, "i64") for n in ("lda", "ldc", "added_stride", "depth")]
    params += [(f"b{g}", "ptr") for g in range(groups)]
    with module.function(_name(rows, groups), params, attributes="noinline", is_exported=False) as f:
        a, c, start, added, ahead, lda, ldc, added_stride, depth, *b = f.params
        # Rows of C and of `added` are far apart, often in few cache sets, so prefetch them now. AVX2 code has
        # no prefetch for writing: one for reading shares a line that another core wrote, and the tile waits.
        for i in range(rows if f.isa.name != "avx2" else 0):
            f.prefetch(f.at(c, ldc * i), for_write=True)
            f.prefetch(f.at(added, added_stride * i))
        vectors = groups * COLUMNS // f.lanes
        a_rows = [f.at(a, lda * i) for i in range(rows)]
        sums = [f.load(f.at(start, v * f.lanes), f.vec) for v in range(vectors)] * rows
        # With few rows there are too few sums to hide the latency of FMA, so K is summed in several chains.
        chains = max(n for n in (1, 2, 4) if n == 1 or n * len(sums) <= _sums(f.isa))
        zeros = [f.const(0.0, f.vec)] * (len(sums) * (chains - 1))
        if blocks:
            sums = exchange_halves(f, sums, rows)
        whole = depth & -UNROLL
        with f.loop(0, whole, UNROLL, carry=[*sums, *zeros]) as k:
            now = list(k.carried)
            f.prefetch(f.at(ahead, k.index), level=2)
            for n, step in enumerate(range(0, UNROLL, 2 if blocks else 1)):
                factors, at, first = (a_rows, b), k.index + step, n % chains * len(sums)
                if blocks:
                    _multiply_blocks(f, (multiply, blocks), factors, at, now, first)
                else:
                    _multiply(f, multiply, factors, at, now, first)
            k.carry(now)
        total = k.carried[: len(sums)]
        for chain in range(1, chains):
            total = [x + y for x, y in zip(total, k.carried[chain * len(sums) :], strict=False)]
        if blocks:
            total = exchange_halves(f, total, rows)
        with f.loop(whole, depth, carry=total) as k:
            now = list(k.carried)
            _multiply(f, multiply, (a_rows, b), k.index, now, 0)
            k.carry(now)
        total = k.carried
        places = [(i, v * f.lanes) for i in range(rows) for v in range(vectors)]
        results = _add_residual(f, total, places, added, added_stride)
        for x, (i, v) in zip(results, places, strict=True):
            f.store(x, f.at(c, ldc * i + v))
        f.ret()


def _sums(isa: Isa) -> int:
    """Accumulators a full tile holds."""
    t = tiling(isa)
    return t.rows * t.panel * COLUMNS // isa.lanes


def _add_residual(
    f: Function, sums: Sequence[Value], places: Sequence[tuple[int, int]], added: Value, stride: Value
) -> Sequence[Value]:
    def with_added() -> Sequence[Value]:
        return [
            x + f.load(f.at(added, stride * i + v), f.vec) for x, (i, v) in zip(sums, places, strict=True)
        ]

    return f.choose(added.compare("ne", 0), with_added, lambda: sums)


def _multiply(
    f: Function,
    multiply: MultiplyAdd,
    factors: tuple[Sequence[Value], Sequence[Value]],
    k: Value,
    sums: list[Value],
    at: int,
) -> None:
    """One row of B, all column groups, into the sums from `at` on; `factors` are A's rows and B's groups."""
    a_rows, b = factors
    row = k * COLUMNS
    columns = [f.load(f.at(p, row + v), f.vec, 4 * f.lanes) for p in b for v in range(0, COLUMNS, f.lanes)]
    for i, p in enumerate(a_rows):
        x = f.splat(f.load(f.at(p, k)))
        of_row = slice(at + i * len(columns), at + (i + 1) * len(columns))
        totals = [multiply(f, x, c, total) for c, total in zip(columns, sums[of_row], strict=True)]
        # SSE, without FMA, has no register left.
        sums[of_row] = f.keep_sums(totals) if f.isa.has_fma else totals


def _multiply_blocks(
    f: Function,
    multiply: tuple[MultiplyAdd, MultiplyAdd],
    factors: tuple[Sequence[Value], Sequence[Value]],
    k: Value,
    sums: list[Value],
    at: int,
) -> None:
    """As `_multiply`, two rows of B by blocks into sums of 2 x 2 blocks; a last row of A is handled alone."""
    (a_rows, b), (add_one, add_block), two = factors, multiply, vector(2, "float")
    places = [f.at(p, k * COLUMNS + v) for p in b for v in range(0, COLUMNS, f.lanes)]
    words = [f.load(f.at(p, k), two) for p in a_rows]
    pairs = [f.shuffle(x, y, range(4)) for x, y in zip(words[::2], words[1::2], strict=False)]
    pairs = f.pin(pairs) if pairs else []  # before words of B occupy registers
    for v, place in enumerate(places):
        low, high = (f.load(f.at(place, n * COLUMNS), f.vec, 4 * f.lanes) for n in range(2))
        halves = [f.shuffle(low, high, lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))]
        here = [at + (2 * i + half) * len(places) + v for i in range(len(pairs)) for half in range(2)]
        made = [add_block(f, pairs[i // 2], halves[i % 2], sums[n]) for i, n in enumerate(here)]
        if len(a_rows) % 2:
            here.append(at + (len(a_rows) - 1) * len(places) + v)
            total = sums[here[-1]]
            for n, y in enumerate((low, high)):
                total = add_one(f, f.shuffle(words[-1], None, [n] * f.lanes), y, total)
            made.append(total)
        for n, total in zip(here, f.pin(made), strict=True):
            sums[n] = total
