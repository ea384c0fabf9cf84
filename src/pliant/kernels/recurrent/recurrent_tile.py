"""The products of a recurrent step: a few sequences' states times the weights of 16 hidden units' gates."""

from collections.abc import Callable
from functools import partial

from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.recurrent.recurrent_args import LANES

_UNROLL = 4
_AHEAD = 32  # rows of weights, multiplied during one memory latency


def tile_rows(isa: Isa) -> int:
    """Rows of a full tile of one gate."""
    return {"avx512": 12, "avx2": 6, "neon": 6, "x86-64": 2}[isa.name]


def write_products(module: Module, gates: int) -> None:
    """Define `products<gates>(a, lda, b, c, rows, depth)`: c[rows][gates * 16] += a @ b.

    `b` is [gates][depth][16]; `depth` is a multiple of 4.
    """
    full = tile_rows(module.isa)
    for rows in range(1, full + 1):
        _write_tile(module, gates, rows)
    params = [("a", "ptr"), ("lda", "i64"), ("b", "ptr"), ("c", "ptr"), ("rows", "i64"), ("depth", "i64")]
    with module.function(f"products{gates}", params, attributes="noinline", is_exported=False) as f:
        a, lda, b, c, n_rows, depth = f.params
        # Tiles of about equal size: a small last tile would read all weights for few rows.
        n_tiles = (n_rows + (full - 1)) // full
        with f.each(0, n_tiles) as i:
            row = n_rows * i // n_tiles
            count = n_rows * (i + 1) // n_tiles - row

            def tile(rows: int, row: Value = row) -> None:
                a_row, c_row = f.at(a, row * lda), f.at(c, row * (gates * LANES))
                f.call(f"tile{gates}x{rows}", "void", a_row, lda, b, c_row, depth)

            cases: dict[int, Callable[[], None]] = {n: partial(tile, n) for n in range(1, full + 1)}
            f.match(count, cases)
        f.ret()


def _write_tile(module: Module, gates: int, rows: int) -> None:
    """Compute all gates, as many at a time as registers hold sums."""
    isa = module.isa
    vectors = LANES // isa.lanes
    most = 24 if isa.registers == 32 else 12

    def fits(together: int, chains: int) -> bool:
        """Whether registers hold the sums, a row of weights and a word of the state."""
        sums = chains * together * rows * vectors
        return sums <= most and sums + together * vectors + 1 <= isa.registers

    together = max(n for n in (1, 2, 3, 4) if gates % n == 0 and (n == 1 or fits(n, 1)))
    chains = max(n for n in (1, 2, 4) if n == 1 or fits(together, n))
    params = [("a", "ptr"), ("lda", "i64"), ("b", "ptr"), ("c", "ptr"), ("depth", "i64")]
    with module.function(f"tile{gates}x{rows}", params, attributes="noinline", is_exported=False) as f:
        a, lda, b, c, depth = f.params
        a_rows = [f.at(a, lda * i) for i in range(rows)]
        for first in range(0, gates, together):
            panels = [f.at(b, depth * (LANES * gate)) for gate in range(first, first + together)]
            columns = range(first * LANES, (first + together) * LANES, f.lanes)
            places = [(i, column) for i in range(rows) for column in columns]
            sums = [f.load(f.at(c, i * gates * LANES + column), f.vec) for i, column in places]
            zeros = [f.const(0.0, f.vec)] * (len(sums) * (chains - 1))
            with f.loop(0, depth, _UNROLL, carry=[*sums, *zeros]) as k:
                now = list(k.carried)
                for step in range(_UNROLL):
                    row = (k.index + step) * LANES
                    if rows == 1:
                        for panel in panels:
                            f.prefetch(f.at(panel, row + _AHEAD * LANES))
                    loaded = [
                        f.load(f.at(panel, row + v), f.vec, 4 * f.lanes)
                        for panel in panels
                        for v in range(0, LANES, f.lanes)
                    ]
                    for i, pointer in enumerate(a_rows):
                        x = f.splat(f.load(f.at(pointer, k.index + step)))
                        for v, column_values in enumerate(loaded):
                            n = step % chains * len(sums) + i * len(loaded) + v
                            now[n] = f.fma(x, column_values, now[n])
                        if isa.has_fma and (i % 4 == 3 or i == rows - 1):
                            now = f.pin(now)
                k.carry(now)
            total = k.carried[: len(sums)]
            for chain in range(1, chains):
                total = [x + y for x, y in zip(total, k.carried[chain * len(sums) :], strict=False)]
            for x, (i, column) in zip(total, places, strict=True):
                f.store(x, f.at(c, i * gates * LANES + column))
        f.ret()
