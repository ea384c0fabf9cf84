"""Convert blocks of strided matrices to the layouts that tiles read."""

import numpy as np

from pliant.arrays import Float
from pliant.kernels.attention.attention_steps import QUAD, concatenate, transpose
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.matmul_args import COLUMNS, MatmulArgs


def packed_bytes(depth: int, n_columns: int) -> int:
    """Bytes that `pack_panels` writes."""
    return 4 * depth * COLUMNS * -(-n_columns // COLUMNS)


def pack_panels(
    matrix: Float[np.ndarray, "K N"], out: Float[np.ndarray, "groups K 16"], alpha: float = 1.0
) -> None:
    """alpha * matrix in column groups of [K][16]; columns that do not exist are 0."""
    depth, n = matrix.shape
    whole = n // COLUMNS
    out[:whole] = matrix[:, : whole * COLUMNS].reshape(depth, whole, COLUMNS).transpose(1, 0, 2)
    if n % COLUMNS:
        out[whole] = 0.0
        out[whole, :, : n % COLUMNS] = matrix[:, whole * COLUMNS :]
    if alpha != 1.0:
        out *= np.float32(alpha)


def write_pack(module: Module) -> None:
    """Define `pack_block`, `pack_rows` and `copy_columns`."""
    _write_pack_block(module)
    _write_pack_rows(module)
    write_copy_columns(module)


def provide_block(
    f: Function, args: Value, b: Value, group: Value, k: Value, n: Value, space: Value
) -> Value:
    """Rows k .. k + n - 1 of a column group of B as [n][16]: in place, or packed into `space`."""
    is_packed, depth = f.fields(args, MatmulArgs, "is_packed", "depth")
    with f.when(is_packed.compare("eq", 0)):
        f.call("pack_block", "void", args, b, group, k, n, space)
    return f.select(is_packed.compare("ne", 0), f.at(b, (group * depth + k) * COLUMNS), space)


def _write_pack_block(module: Module) -> None:
    """`pack_block(args, b, group, k, n, space)`: alpha * `n` rows of a column group, as [n][16]."""
    params = [("args", "ptr"), ("b", "ptr"), ("group", "i64"), ("k", "i64"), ("n", "i64"), ("space", "ptr")]
    with module.function("pack_block", params, attributes="noinline", is_exported=False) as f:
        args, b, group, k, n, space = f.params
        n_columns, b_row, b_column, alpha = f.fields(
            args, MatmulArgs, "n_columns", "b_row", "b_column", "alpha"
        )
        column = group * COLUMNS
        here = f.at(b, k * b_row + column * b_column)
        width = f.least(n_columns - column, COLUMNS)
        is_whole = width.compare("eq", COLUMNS)
        in_rows = is_whole & b_column.compare("eq", 1)
        in_columns = is_whole & b_row.compare("eq", 1) & b_column.compare("ne", 1)
        n_quads = f.select(in_columns, n & -QUAD, f.const(0))
        done = f.select(in_rows, n, n_quads)
        with f.when(in_rows):
            _copy_rows(f, here, b_row, n, alpha, space)
        with f.when(in_columns):
            _transpose_quads(f, here, b_column, n_quads, alpha, space)
        with f.each(done, n) as row:
            for v in range(0, COLUMNS, f.lanes):
                f.store(f.const(0.0, f.vec), f.at(space, row * COLUMNS + v))
            with f.each(0, width) as j:
                x = f.load(f.at(here, row * b_row + j * b_column))
                f.store(x * alpha, f.at(space, row * COLUMNS + j))
        f.ret()


def _copy_rows(f: Function, b: Value, b_row: Value, n: Value, alpha: Value, space: Value) -> None:
    factor = f.splat(alpha)
    with f.each(0, n) as row:
        for v in range(0, COLUMNS, f.lanes):
            x = f.load(f.at(b, row * b_row + v), f.vec)
            f.store(x * factor, f.at(space, row * COLUMNS + v))


def _transpose_quads(f: Function, b: Value, b_column: Value, n: Value, alpha: Value, space: Value) -> None:
    """Four rows at a time of a matrix whose columns are contiguous."""
    factor = f.splat(alpha)
    four = vector(QUAD, "float")
    columns = [f.at(b, b_column * j) for j in range(COLUMNS)]
    with f.each(0, n, QUAD) as row:
        for v in range(0, COLUMNS, f.lanes):
            parts = [f.load(f.at(p, row), four) for p in columns[v : v + f.lanes]]
            wide = [concatenate(f, parts[i::QUAD]) for i in range(QUAD)]
            for i, lanes in enumerate(transpose(f, wide)):
                f.store(lanes * factor, f.at(space, (row + i) * COLUMNS + v))


def _write_pack_rows(module: Module) -> None:
    """`pack_rows(a, row stride, column stride, rows, n, to)`: any strides to [rows][n]."""
    params = [("a", "ptr"), ("row", "i64"), ("column", "i64"), ("rows", "i64"), ("n", "i64"), ("to", "ptr")]
    with module.function("pack_rows", params, attributes="noinline", is_exported=False) as f:
        a, row, column, rows, n, to = f.params
        # Columns in the outer loop: a transposed matrix is then read along its rows.
        with f.each(0, n) as j, f.each(0, rows) as i:
            f.store(f.load(f.at(a, i * row + j * column)), f.at(to, i * n + j))
        f.ret()


def write_copy_columns(module: Module) -> None:
    """`copy_columns(x, ld_x, rows, n, to, ld_to)`: a few columns, n, of each row."""
    params = [("x", "ptr"), ("ldx", "i64"), ("rows", "i64"), ("n", "i64"), ("to", "ptr"), ("ldt", "i64")]
    with module.function("copy_columns", params, attributes="noinline", is_exported=False) as f:
        x, ldx, rows, n, to, ldt = f.params
        with f.each(0, rows) as i, f.each(0, n) as j:
            f.store(f.load(f.at(x, i * ldx + j)), f.at(to, i * ldt + j))
        f.ret()
