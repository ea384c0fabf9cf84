"""Decide when tiles are faster: cycles of products on a CPU with AMX, counted from its instructions.

The unit is 16 rows times 16 columns of 32 terms, the work of one tile product: `tdpbf16ps` takes 16 cycles,
of which split numbers need three; vectors take 256 cycles with two `vfmadd` a cycle. The other numbers are
instructions of the generated code over two vector ports, loads and stores of tiles as measured on Sapphire
Rapids.
"""

from math import ceil

ROWS, COLUMNS, TERMS = 16, 16, 32
_PRODUCT = 16
_IN_VECTORS = 256 / 0.75
"""Products in vectors reach three quarters of the peak, as measured."""
SPLIT = 110
"""Split 16 rows of 32 floats: for each row two loads, ten vector instructions and two stores."""
_SUMS = 32
"""Load and store the sums of a tile, once per call that adds to it."""
_ENDS = 100
"""Bias, activation and residual of a tile of 16 x 16."""
_CALL = 150
"""Configure tiles and call the product of some rows with a panel."""


def cycles_in_vectors(rows: float, columns: float, depth: float) -> float:
    """Cycles of a product by FMA, assuming that nearly all lanes and rows are used."""
    return rows / ROWS * columns / COLUMNS * depth / TERMS * _IN_VECTORS


def cycles_in_tiles(row_tiles: int, columns: int, depths: tuple[int, ...], panels: int, parts: int) -> float:
    """Cycles in tiles, for rows in `row_tiles`; each of `depths` adds to the sums, in `panels` calls."""
    column_tiles = ceil(columns / COLUMNS)
    calls = len(depths) * (2 if parts == 2 else 1)
    products = (3 if parts == 2 else 1) * _PRODUCT * sum(ceil(n / TERMS) for n in depths)
    return row_tiles * column_tiles * (products + calls * _SUMS + _ENDS) + panels * calls * _CALL
