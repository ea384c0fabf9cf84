"""Integer products by Arm's I8MM: two rows and two columns at once, from unchanged layouts of A and B.

While blocks are summed, the sums of a pair of rows are 2 x 2 blocks: of the first two columns of a vector in
the place of the first row's, of the last two in the place of the second row's.
"""

from collections.abc import Sequence

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_dots import add_quads, splat_word
from pliant.kernels.product.matmul_args import COLUMNS

_BYTES = 16
_FIRST, _LAST = (0, 1, 4, 5), (2, 3, 6, 7)
_EVEN, _ODD = (0, 4, 1, 5), (2, 6, 3, 7)


def exchange_halves(f: Function, sums: Sequence[Value], vectors: int) -> list[Value]:
    """Sums of rows of `vectors` as sums of blocks, or back; an odd last row stays as it is."""
    made = list(sums)
    for i in range(len(sums) // (2 * vectors) * 2 * vectors):
        if i // vectors % 2 == 0:
            two = sums[i], sums[i + vectors]
            made[i], made[i + vectors] = (f.shuffle(*two, lanes) for lanes in (_FIRST, _LAST))
    return made


def add_blocks(f: Function, a_rows: Sequence[Value], b: Value, word: Value, sums: list[Value]) -> list[Value]:
    """The sums after words `word` and `word` + 1 of rows of A and of 16 columns of B."""
    two, whole, rows = vector(2, "i32"), vector(f.lanes, "i32"), len(a_rows)
    both = word, word + 1
    ends = [f.load(f.at(row, word, "i32"), two, 1) for row in a_rows]
    pairs = [f.shuffle(ends[i], ends[i + 1], range(4)) for i in range(0, rows - 1, 2)]
    pairs = f.pin(pairs) if pairs else []
    vectors = COLUMNS // f.lanes
    for v in range(vectors):
        low, high = (f.load(f.at(b, at * COLUMNS + v * f.lanes, "i32"), whole, 4 * f.lanes) for at in both)
        columns = [f.shuffle(low, high, lanes) for lanes in (_EVEN, _ODD)]
        for i, pair in enumerate(pairs):
            for half, y in enumerate(columns):
                n = (2 * i + half) * vectors + v
                sums[n] = _add_block(f, sums[n], pair, y)
        if rows % 2:
            n = (rows - 1) * vectors + v
            for at, y in zip(both, (low, high), strict=True):
                x = splat_word(f, f.load(f.at(a_rows[-1], at, "i32"), "i32", 1))
                sums[n] = add_quads(f, sums[n], x, y)
        sums = f.pin(sums)
    return sums


def _add_block(f: Function, total: Value, x: Value, y: Value) -> Value:
    """total + x @ y, [2 rows][8] and [2 columns][8] signed bytes, to [2 rows][2 columns]."""
    x, y = (f.cast("bitcast", z, vector(_BYTES, "i8")) for z in (x, y))
    if not f.isa.is_portable:
        return f.intrinsic("llvm.aarch64.neon.smmla", total.type, total, x, y, suffix=".v4i32.v16i8")
    x, y = (f.cast("sext", z, vector(_BYTES, "i32")) for z in (x, y))
    for k in range(8):
        rows, columns = (k, k, 8 + k, 8 + k), (k, 8 + k, k, 8 + k)
        total = total + f.shuffle(x, None, rows) * f.shuffle(y, None, columns)
    return total
