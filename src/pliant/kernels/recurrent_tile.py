"""The products of a recurrent step: a few sequences' states times the weights of 16 hidden units' gates.

Knows rows and columns, no gates' meaning and no time.
"""

from collections.abc import Callable
from functools import partial

from pliant.kernels.emit import Module
from pliant.kernels.isa import Isa
from pliant.kernels.recurrent_args import LANES
from pliant.kernels.values import Value

_UNROLL = 4
_AHEAD = 32  # rows of weights: what is multiplied while memory answers


def tile_rows(isa: Isa) -> int:
    """Rows of a full tile of one gate."""
    return {"avx512": 12, "avx2": 6, "neon": 6, "x86-64": 3}[isa.name]


def write_products(module: Module, gates: int) -> None:
    """Define `products<gates>(a, lda, b, c, rows, depth)`: c[rows][gates * 16] += a @ b.

    `b` is [depth][gates * 16]; `depth` is a multiple of 4.
    """
    full = tile_rows(module.isa)
    for rows in range(1, full + 1):
        _write_tile(module, gates, rows)
    params = [("a", "ptr"), ("lda", "i64"), ("b", "ptr"), ("c", "ptr"), ("rows", "i64"), ("depth", "i64")]
    with module.function(f"products{gates}", params, attributes="noinline", is_exported=False) as f:
        a, lda, b, c, n_rows, depth = f.params
        whole = n_rows - n_rows % full

        def tile(rows: int, row: Value) -> None:
            f.call(
                f"tile{gates}x{rows}",
                "void",
                f.at(a, row * lda),
                lda,
                b,
                f.at(c, row * (gates * LANES)),
                depth,
            )

        with f.each(0, whole, full) as row:
            tile(full, row)
        cases: dict[int, Callable[[], None]] = {rows: partial(tile, rows, whole) for rows in range(1, full)}
        f.match(n_rows - whole, cases)
        f.ret()


def _write_tile(module: Module, gates: int, rows: int) -> None:
    """All gates, as many at a time as there are registers for their sums."""
    isa = module.isa
    vectors = LANES // isa.lanes
    room = 24 if isa.registers == 32 else 12
    together = max(n for n in (1, 2, 3, 4) if gates % n == 0 and (n == 1 or n * rows * vectors <= room))
    sums_at_once = together * rows * vectors
    chains = max(n for n in (1, 2, 4) if n == 1 or n * sums_at_once <= room)
    params = [("a", "ptr"), ("lda", "i64"), ("b", "ptr"), ("c", "ptr"), ("depth", "i64")]
    with module.function(f"tile{gates}x{rows}", params, attributes="noinline", is_exported=False) as f:
        a, lda, b, c, depth = f.params
        a_rows = [f.at(a, lda * i) for i in range(rows)]
        for first in range(0, gates * LANES, together * LANES):
            columns = range(first, first + together * LANES, f.lanes)
            places = [(i, column) for i in range(rows) for column in columns]
            sums = [f.load(f.at(c, i * gates * LANES + column), f.vec) for i, column in places]
            zeros = [f.const(0.0, f.vec)] * (len(sums) * (chains - 1))
            with f.loop(0, depth, _UNROLL, carry=[*sums, *zeros]) as k:
                now = list(k.carried)
                for step in range(_UNROLL):
                    row = f.at(b, (k.index + step) * (gates * LANES))
                    if rows == 1:
                        for line in range(first, first + together * LANES, 16):
                            f.prefetch(f.at(row, _AHEAD * gates * LANES + line))
                    loaded = [f.load(f.at(row, column), f.vec, 4 * f.lanes) for column in columns]
                    for i, pointer in enumerate(a_rows):
                        x = f.splat(f.load(f.at(pointer, k.index + step)))
                        for v, column_values in enumerate(loaded):
                            n = step % chains * len(sums) + i * len(loaded) + v
                            now[n] = f.fma(x, column_values, now[n])
                k.carry(now)
            total = k.carried[: len(sums)]
            for chain in range(1, chains):
                total = [x + y for x, y in zip(total, k.carried[chain * len(sums) :], strict=False)]
            for x, (i, column) in zip(total, places, strict=True):
                f.store(x, f.at(c, i * gates * LANES + column))
        f.ret()
