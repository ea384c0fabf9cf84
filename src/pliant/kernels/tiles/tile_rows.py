"""Rows of A times a panel of B in tiles: one block of K, added to sums that are kept in memory.

A panel is one, two or four column groups of 16. Two rows of tiles are multiplied with two columns of tiles,
which needs the fewest loads per product; four columns use one row of tiles, for up to 16 rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value
from pliant.kernels.tiles.tile_ops import (
    CONFIG_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    TileKind,
    tile_ops,
    write_configure,
    write_tile_ops,
)

PANELS = (1, 2, 4)
"""Column groups of a panel."""
TILE = TILE_ROWS * TILE_BYTES
"""Bytes of a tile."""
MOST_ROWS_IN_VECTORS: dict[TileKind, int] = {"int8": 8, "bf16": 2}
"""Most rows of a product without tiles; products of more rows use tiles."""
_ROW_WORDS = TILE_BYTES // 4
_BLOCK_WORDS, _ROWS_IN_ONE_PASS = 192, 32
_A, _B = 4, 6
_TERMS = {1: ((0, 0),), 2: ((0, 0), (1, 0)), 3: ((1, 0), (0, 0), (0, 1))}
"""Parts of A and of B (0 upper, 1 lower) whose products are added, in an order that loads few tiles again."""


@dataclass(frozen=True, slots=True)
class StoredTiles:
    """How whole rows of tiles of A lie in memory: the address of the first tile and the bytes to the next
    along K, to a tile's next row, and to the second part.
    """

    at: Value
    step: Value
    row: Value
    part: Value


@dataclass(frozen=True, slots=True)
class LeftRows:
    """The address of A: rows of words, `row` bytes apart; a second part is `part` bytes further.

    With `tiles`, as many rows from the first one on as fill pairs of tiles lie there instead, in as many
    bytes.
    """

    at: Value
    row: Value
    part: Value
    tiles: StoredTiles | None = None


def takes_tiles(n_rows: Value, kind: TileKind) -> Value:
    """Whether a product of `n_rows` uses tiles, in which a few rows take nearly as long as 16.

    As measured, VNNI has an eighth of the tiles' speed, `vdpbf16ps` a thirtieth.
    """
    return n_rows > MOST_ROWS_IN_VECTORS[kind]


def rows_of_tiles(groups: int) -> int:
    """Rows of tiles that are kept in registers with `groups` columns of tiles."""
    return 2 if groups <= 2 else 1


def write_tile_rows(module: Module, kind: TileKind, parts: int = 1) -> None:
    """Define the functions that `multiply_rows` calls for A in `parts`; with two, also for B in two parts."""
    write_tile_ops(module)
    write_configure(module)
    for terms in (1,) if parts == 1 else (2, 3):
        for groups in PANELS:
            for high in range(1, rows_of_tiles(groups) + 1):
                _write_tiles(module, kind, terms, high, groups)
            _write_rows(module, kind, terms, groups)


def multiply_in_blocks(
    f: Function,
    kind: TileKind,
    config: Value,
    a: LeftRows,
    b: Sequence[Value],
    sums: Value,
    n_rows: Value,
    words: Value,
) -> None:
    """sums = A @ B of all words of K, in blocks so small that a panel of B stays in L1 for all rows."""
    block = f.select(n_rows <= _ROWS_IN_ONE_PASS, words, f.const(_BLOCK_WORDS))
    with f.each(0, words, block) as word:
        rows = LeftRows(f.at(a.at, word, "i32"), a.row, a.part)
        columns = [f.at(p, word * _ROW_WORDS, "i32") for p in b]
        n, is_first = f.least(words - word, block), word.compare("eq", 0)
        multiply_rows(f, kind, config, rows, columns, sums, n_rows, n, is_first)


def config_space(f: Function) -> Value:
    """64 bytes on a function's stack for a configuration; to be allocated at its start."""
    return f.op(f"alloca [{CONFIG_BYTES} x i8], align 64", "ptr")


def release_tiles(f: Function, config: Value) -> None:
    """Release the registers at a kernel's end."""
    tile_ops(f, config).release()


def sums_bytes(rows: int, groups: int) -> int:
    """Memory for the sums of some rows: [blocks of 16][groups][16][16] int32 or float32."""
    return -(-rows // TILE_ROWS) * groups * TILE


def multiply_rows(
    f: Function,
    kind: TileKind,
    config: Value,
    a: LeftRows,
    b: Sequence[Value],
    sums: Value,
    n_rows: Value,
    words: Value,
    is_first: Value,
    parts: int = 1,
    lower: Sequence[Value] = (),
) -> None:
    """sums += A @ B, or sums = A @ B if `is_first` (i1) is true; with two parts of A, for their sum.

    `b` are the panel's column groups, as many as one of `PANELS`, [words][16] of four bytes each. With the
    `lower` parts of split numbers of B, A has two parts as well, and A's upper times B's lower are added.
    """
    terms = 3 if lower else parts
    tiles = a.tiles or StoredTiles(a.at, f.const(TILE_BYTES), a.row, a.part)
    of_a = (a.at, a.row, a.part, tiles.at, tiles.step, tiles.row, tiles.part)
    rest = (sums, n_rows, words, f.cast("zext", is_first, "i64"), *b, *lower)
    f.call(f"rows_{kind}_{terms}_{len(b)}", "void", config, *of_a, *rest)


def _write_rows(module: Module, kind: TileKind, terms: int, groups: int) -> None:
    """`rows_<kind>_<terms>_<groups>`: full tiles along K, then a narrower one."""
    params = [("config", "ptr"), ("a", "ptr"), ("row", "i64"), ("part", "i64"), ("tiles", "ptr")]
    params += [(n, "i64") for n in ("step", "tile_row", "tile_part")]
    params += [("sums", "ptr"), *((n, "i64") for n in ("n_rows", "words", "first"))]
    params += _columns(terms, groups)
    name = f"rows_{kind}_{terms}_{groups}"
    with module.function(name, params, attributes="noinline", is_exported=False) as f:
        _, a, row, part, tiles, step, tile_row, tile_part, _, _, words, first, *b = f.params
        steps, left = words >> 4, words & (_ROW_WORDS - 1)
        along = partial(_multiply_along, f, f"{kind}_{terms}", groups)
        with f.when(steps > 0):
            stored = StoredTiles(tiles, step, tile_row, tile_part)
            along(LeftRows(a, row, part, stored), b, f.const(_ROW_WORDS), steps, first)
        with f.when(left > 0):
            is_first = f.select(steps.compare("eq", 0), first, f.const(0))
            beyond = [f.at(p, steps * TILE, "i8") for p in b]
            stored = StoredTiles(f.at(tiles, steps * step, "i8"), step, tile_row, tile_part)
            rows = LeftRows(f.at(a, steps * TILE_BYTES, "i8"), row, part, stored)
            along(rows, beyond, left, f.const(1), is_first)
        f.ret()


def _multiply_along(
    f: Function,
    kind: str,
    groups: int,
    a: LeftRows,
    b: Sequence[Value],
    words: Value,
    steps: Value,
    first: Value,
) -> None:
    """All rows, for `steps` tiles of `words` words along K."""
    config, sums, n_rows = f.params[0], *f.params[8:10]
    stored = a.tiles
    assert stored is not None
    high = rows_of_tiles(groups)
    in_rows = StoredTiles(a.at, f.const(TILE_BYTES), a.row, a.part)

    def tiles(high: int, row: Value, of: StoredTiles) -> None:
        here, to = f.at(of.at, row * a.row, "i8"), f.at(sums, (row >> 4) * (groups * TILE), "i8")
        below = a.row * TILE_ROWS
        more = (here, below, of.step, of.row, of.part, to, steps, first, *b)
        f.call(f"tiles_{kind}_{high}x{groups}", "void", config, *more)

    full = n_rows & -(TILE_ROWS * high)
    left = n_rows - full
    with f.when(full > 0):
        sixteen = f.const(TILE_ROWS)
        f.call("configure", "void", config, sixteen, sixteen, words)
        with f.each(0, full, TILE_ROWS * high) as row:
            tiles(high, row, stored if high > 1 else in_rows)
    with f.when(left > 0):
        upper = f.least(left, TILE_ROWS)
        lower = left - upper
        f.call("configure", "void", config, upper, f.select(lower > 0, lower, upper), words)
        if high == 1:
            tiles(1, full, in_rows)
        else:
            with f.when(lower > 0):
                tiles(2, full, in_rows)
            with f.when(lower.compare("eq", 0)):
                tiles(1, full, in_rows)


def _write_tiles(module: Module, kind: TileKind, terms: int, high: int, groups: int) -> None:
    """`tiles_<kind>_<terms>_<high>x<groups>`: sums of high x groups tiles, kept in registers along K."""
    params = [("config", "ptr"), ("a", "ptr"), *((n, "i64") for n in ("below", "step", "row", "part"))]
    params += [("sums", "ptr"), ("steps", "i64"), ("first", "i64"), *_columns(terms, groups)]
    name = f"tiles_{kind}_{terms}_{high}x{groups}"
    with module.function(name, params, attributes="noinline", is_exported=False) as f:
        config, a, below, step, row, part, sums, steps, first, *columns = f.params
        ops, wide = tile_ops(f, config), f.const(TILE_BYTES)
        places = list(_places(high, groups))

        def zero() -> list[Value]:
            for tile, _, _ in places:
                ops.zero(tile)
            return []

        def resume() -> list[Value]:
            for tile, r, g in places:
                ops.load(tile, f.at(sums, TILE * (r * groups + g), "i8"), wide)
            return []

        f.choose(first.compare("ne", 0), zero, resume)
        lower = f.at(a, below, "i8")
        with f.each(0, steps) as k:
            here = k * step
            loaded_a = loaded_b = -1
            for of_a, of_b in _TERMS[terms]:
                for r, rows in enumerate((a, lower)[:high] if of_a != loaded_a else ()):
                    ops.load(_A + r, f.at(f.at(rows, here, "i8"), part * of_a, "i8"), row)
                for g in range(groups):
                    if of_b != loaded_b or groups > 2:
                        ops.load(_B + g % 2, f.at(columns[of_b * groups + g], k * TILE, "i8"), wide)
                    for tile, r, _ in (x for x in places if x[2] == g):
                        ops.multiply(kind, tile, _A + r, _B + g % 2)
                loaded_a, loaded_b = of_a, of_b
        for tile, r, g in places:
            ops.store(tile, f.at(sums, TILE * (r * groups + g), "i8"), wide)
        f.ret()


def _columns(terms: int, groups: int) -> list[tuple[str, str]]:
    """The parameters for a panel's column groups, those of each part of B together."""
    n_parts = 1 + max(of_b for _, of_b in _TERMS[terms])
    return [(f"b{g}", "ptr") for g in range(n_parts * groups)]


def _places(high: int, groups: int) -> Iterator[tuple[int, int, int]]:
    """(tile, row of tiles, column of tiles) of C: those of lower rows are 2 and 3, as configured."""
    for r in range(high):
        for g in range(groups):
            yield (g if groups > 2 else 2 * r + g), r, g
