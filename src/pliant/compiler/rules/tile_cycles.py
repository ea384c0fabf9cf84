"""Decide when tiles are faster: cycles of products on a CPU with AMX, counted from its instructions.

The unit is 16 rows times 16 columns of 32 terms, the work of one tile product: `tdpbf16ps` takes 16 cycles,
of which split numbers need three; vectors take 256 cycles with two `vfmadd` a cycle. The other numbers are
instructions of the generated code over two vector ports, loads and stores of tiles as measured on Sapphire
Rapids.
"""

ROWS, COLUMNS, TERMS = 16, 16, 32
_PRODUCT = 16
_PER_CYCLE = ROWS * COLUMNS * TERMS * 3 // (256 * 4)
"""Products of vectors in a cycle: three quarters of the peak, as measured."""
SPLIT = 110
"""Split 16 rows of 32 floats: for each row two loads, ten vector instructions and two stores."""
_SUMS = 32
"""Load and store the sums of a tile, once per call that adds to it."""
_ENDS = 100
"""Bias, activation and residual of a tile of 16 x 16."""
_CALL = 150
"""Configure tiles and call the product of some rows with a panel."""


def cycles_in_vectors(rows: int, columns: int, depth: int) -> int:
    """Cycles of a product by FMA, assuming that nearly all lanes and rows are used; symbolic if a size is."""
    return rows * columns * depth // _PER_CYCLE


def cycles_in_tiles(row_tiles: int, columns: int, steps: int, blocks: int, panels: int, parts: int) -> int:
    """Cycles in tiles, for rows in `row_tiles` and terms in `steps` tiles.

    Each of `blocks` of the terms adds to the sums, in `panels` calls. The result is symbolic if a size is.
    """
    column_tiles = -(-columns // COLUMNS)
    products = (3 if parts == 2 else 1) * _PRODUCT * steps
    return row_tiles * column_tiles * (products + blocks * _SUMS + _ENDS) + panels * blocks * _CALL
