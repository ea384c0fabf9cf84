"""Round rows of float32 to the integers of the int8 GEMM, packed in its tiles' layout.

Rows are in blocks of a tile's height; the last block has the remaining rows. A block is [words][rows] i32:
the words of all its rows that are multiplied with one word of B are adjacent, so a tile reads them from one
address. Every row has its own scale and zero point. For AMX tiles, rows are stored consecutively instead.
"""

import ctypes
from functools import partial

from pliant.kernels.coded.int8.fill_int8 import round_to_integer
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.coded.int8_form import MOST_SUM, Int8Form, int8_form, resident_form
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.tiles.tile_rows import takes_tiles

_TOGETHER = 32  # values of a row


class RoundRowsArgs(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to words `q` and to `scales` [n_rows, 2].

    Row i of A is about scales[i, 0] * (integers - zero), where the 32 bits of scales[i, 1] are the zero
    point. Rows have `depth` integers; those after n_columns are the zero point.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
    )


def row_grain(depth: int, isa: Isa) -> int:
    """Rows that a thread rounds at a time: whole blocks, whose rows share cache lines."""
    height = tile_shape(isa).rows
    return height * max(1, 2048 // (depth * height))


def round_rows_name(is_resident: bool, isa: Isa) -> str:
    """The kernel's name: on CPUs whose sums hold the products, rows for resident weights are rounded in the
    same way.
    """
    takes_more = is_resident and resident_form(isa).activation != int8_form(isa).activation
    return "round_rows_finely" if takes_more else "round_rows"


def round_rows_ir(isa: Isa, *, is_resident: bool = False) -> str:
    """The kernel with RoundRowsArgs; a unit is a row. A row with NaN or infinity gets a NaN scale.

    `is_resident`: the weights that the rows are multiplied with are resident.
    """
    module = Module(isa)
    form = resident_form(isa) if is_resident else int8_form(isa)
    with module.kernel(round_rows_name(is_resident, isa)) as f:
        args, lo, hi, _ = f.params
        names = ("a", "lda", "n_rows", "n_columns", "q", "depth", "scales")
        a, lda, n_rows, n_columns, q, depth, scales = f.fields(args, RoundRowsArgs, *names)
        height = tile_shape(isa).rows
        with f.each(lo, hi) as row:
            source = f.at(a, row * lda)
            first = row // height * height
            in_block = f.least(n_rows - first, height)
            to = f.at(q, first * (depth // form.packing) + (row - first), "i32")
            by, scale, zero = _steps(f, form, depth, *_extremes(f, source, n_columns))
            f.store(scale, f.at(scales, row * 2))
            f.store(zero, f.at(scales, row * 2 + 1, "i32"))
            write = partial(_write_row, f, form, source, (n_columns, depth), by=by, zero=zero)
            if isa.has_tiles:
                by_rows = f.at(q, row * (depth // form.packing), "i32"), None
                f.choose(
                    takes_tiles(n_rows, "int8"),
                    lambda: write(to=by_rows) or [],
                    lambda: write(to=(to, in_block)) or [],
                )
            else:
                write(to=(to, in_block))
    return module.text()


def _extremes(f: Function, source: Value, n: Value) -> tuple[Value, Value, Value]:
    """(least, largest) of a row and 0, and a float that is NaN if the row holds NaN or infinity, else 0."""
    whole = n & -_TOGETHER
    zeros = f.const(0.0, f.vec)
    chains = _TOGETHER // f.lanes
    with f.loop(0, whole, _TOGETHER, carry=[zeros] * (3 * chains)) as loop:
        least, most, taint = (list(loop.carried[i * chains : (i + 1) * chains]) for i in range(3))
        for i in range(chains):
            x = f.load(f.at(source, loop.index + i * f.lanes), f.vec)
            least[i], most[i] = f.select(x < least[i], x, least[i]), f.select(x > most[i], x, most[i])
            taint[i] = f.fma(x, zeros, taint[i])
        loop.carry([*least, *most, *taint])
    found = []
    for i, combine in enumerate((_least, _most, _sum)):
        first, *others = loop.carried[i * chains : (i + 1) * chains]
        for other in others:
            first = combine(first, other)
        found.append(f.fold(first, combine))
    with f.loop(whole, n, carry=found) as loop:
        x = f.load(f.at(source, loop.index))
        low, high, tainted = loop.carried
        loop.carry([_least(x, low), _most(x, high), f.fma(x, f.const(0.0, "float"), tainted)])
    low, high, tainted = loop.carried
    return low, high, tainted


def _steps(
    f: Function, form: Int8Form, depth: Value, low: Value, high: Value, taint: Value
) -> tuple[Value, Value, Value]:
    """(steps in 1.0, value of a step, zero point) of a row: `Int8Form.levels` of `depth`."""
    if form.is_bytes:
        whole = float(2 * form.activation + 1)
        levels, inverse, size = f.const(whole, "float"), f.const(1.0 / whole, "float"), high - low
    else:
        fit = f.least(f.const(MOST_SUM // form.centroid) // depth, form.activation)
        levels, size = f.cast("sitofp", fit, "float"), _most(high, -low)
        inverse = f.const(1.0, "float") / levels
    by = f.select(size > 0.0, levels / size, f.const(0.0, "float"))
    scale = size * inverse + taint
    if not form.is_bytes:
        return by, scale, f.const(0, "i32")
    return by, scale, round_to_integer(f, -low * by) + form.lowest


def _write_row(
    f: Function,
    form: Int8Form,
    source: Value,
    columns: tuple[Value, Value],
    to: tuple[Value, Value | None],
    by: Value,
    zero: Value,
) -> None:
    """Write a row. `columns` are (its columns, its columns with padding), `to` its first word and the stride
    of words.

    If the stride is None, a row's words are contiguous.
    """
    (n, depth), (first, stride) = columns, to
    packing, element = form.packing, f"i{32 // form.packing}"
    whole = n & -f.lanes
    steps, zeros = f.splat(by), f.splat(zero)

    def narrowed(column: Value) -> Value:
        integers = _integers(f, form, f.load(f.at(source, column), f.vec), steps, zeros)
        return f.cast("trunc", integers, vector(f.lanes, element))

    is_alone = f.const(1, "i1") if stride is None else stride.compare("eq", 1)
    with f.when(is_alone), f.each(0, whole, f.lanes) as column:
        f.store(narrowed(column), f.at(first, column, element))
    if stride is not None:
        with f.each(f.select(is_alone, whole, f.const(0)), whole, f.lanes) as column:
            _scatter(f, narrowed(column), packing, f.at(first, column // packing * stride, "i32"), stride)

    def place(column: Value) -> Value:
        if stride is None:
            return f.at(first, column, element)
        return f.at(first, (column // packing * stride) * packing + column % packing, element)

    with f.each(whole, n) as column:
        one = _integers(f, form, f.load(f.at(source, column)), by, zero)
        f.store(f.cast("trunc", one, element), place(column))
    with f.each(n, depth) as column:
        f.store(f.cast("trunc", zero, element), place(column))


def _scatter(f: Function, integers: Value, packing: int, to: Value, stride: Value) -> None:
    """Store words of `packing` integers with a stride of `stride` words."""
    count = f.lanes // packing
    words = f.cast("bitcast", integers, vector(count, "i32") if count > 1 else "i32")
    for i in range(count):
        word = f.extract(words, i) if count > 1 else words
        f.store(word, f.at(to, stride * i, "i32"))


def _integers(f: Function, form: Int8Form, x: Value, by: Value, zero: Value) -> Value:
    whole = round_to_integer(f, x * by) + zero
    if not form.is_bytes:
        return whole
    # Both extremes may round outwards, by one step in total.
    highest = f.const(form.lowest + 2 * form.activation + 1, whole.type)
    return f.select(whole > highest, highest, whole)


def _least(a: Value, b: Value) -> Value:
    return a.function.select(a < b, a, b)


def _most(a: Value, b: Value) -> Value:
    return a.function.select(a > b, a, b)


def _sum(a: Value, b: Value) -> Value:
    return a + b
