"""Integer products: C = activation(scale * (A @ B) * column scales + bias + residual), or A @ B in int32.

A and B are bytes minus their zero points, in one of three forms (`IntegerForm`); sums are exact in int32.
"""

import ctypes
from enum import Enum
from functools import partial

import numpy as np

from pliant.arrays import Integer
from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.integer_blocks import add_blocks, exchange_halves
from pliant.kernels.product.integer_dots import add_pairs, add_quads, left_is_signed, splat_word
from pliant.kernels.product.matmul import write_activate
from pliant.kernels.product.matmul_args import COLUMNS
from pliant.kernels.product.matmul_pack import write_copy_columns
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    TILE,
    LeftRows,
    config_space,
    multiply_in_blocks,
    release_tiles,
    sums_bytes,
    takes_tiles,
    write_tile_rows,
)

ROW_BLOCK = 144
_UNROLL = 4
_TILED_GROUPS = 2
_TILED_AT = 4 * COLUMNS * (ROW_BLOCK + 1)


class IntegerForm(Enum):
    """How many values share an i32 word of A and of B's panels, and of which type.

    WORDS: int16 in both, for differences that need nine bits. WIDENED: int16 in A, bytes in B that are
    widened when they are read: half the memory. BYTES: bytes in both, for CPUs that multiply them; A keeps
    its zero point, which the kernel subtracts using B's column sums.
    """

    WORDS = "words"
    WIDENED = "widened"
    BYTES = "bytes"

    @property
    def a_bytes(self) -> int:
        """Bytes of a value of A."""
        return 1 if self is IntegerForm.BYTES else 2

    @property
    def b_bytes(self) -> int:
        """Bytes of a value of B."""
        return 2 if self is IntegerForm.WORDS else 1

    @property
    def packing(self) -> int:
        """Rows of B that are multiplied together: values in a word of A."""
        return 4 // self.a_bytes

    def words(self, depth: int) -> int:
        """i32 words in a row of A."""
        return -(-depth // self.packing)


def choose_form(isa: Isa, fits_bytes: bool) -> IntegerForm:
    """The form of a product on `isa` whose weights, minus their zero point, fit signed bytes or not."""
    if not fits_bytes:
        return IntegerForm.WORDS
    return IntegerForm.BYTES if isa.has_dot else IntegerForm.WIDENED


def byte_shift(isa: Isa, a_dtype: str) -> int:
    """Number to add to bytes of `a_dtype` ("int8", "uint8") for the signedness of BYTES on `isa`."""
    is_signed = a_dtype == "int8"
    return 0 if is_signed == left_is_signed(isa) else 128 if is_signed else -128


class MatmulIntegerArgs(ctypes.Structure):
    """A is [n_rows, words] i32 words, B [column groups][words][16] of as many values, C float32 or int32.

    `a_scale` is one float; `b_scales`, `bias` and int32 `sums`, B's column sums, have one for every column of
    every group. `a_zero` is a byte, signed if `zero_is_signed`, to which `zero_shift` is added; null means 0.
    Only BYTES reads it and the sums. A unit is `panel` column groups of ROW_BLOCK rows.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("a_scale", ctypes.c_void_p),
        ("b_scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("panel", ctypes.c_int64),
        ("sums", ctypes.c_void_p),
        ("a_zero", ctypes.c_void_p),
        ("zero_is_signed", ctypes.c_int64),
        ("zero_shift", ctypes.c_int64),
    )


def pack(
    matrix: Integer[np.ndarray, "K N"],
    out: Integer[np.ndarray, "groups words 16 packing"],
) -> None:
    """B's panels, int8 or int16; rows and columns that do not exist are 0."""
    depth, n = matrix.shape
    groups, words, _, packing = out.shape
    whole = np.zeros((packing * words, groups * COLUMNS), out.dtype)
    whole[:depth, :n] = matrix
    out[:] = whole.reshape(words, packing, groups, COLUMNS).transpose(2, 0, 3, 1)


def units(n_rows: int, n_columns: int, panel: int) -> int:
    """Work units of a product."""
    groups = -(-n_columns // COLUMNS)
    return -(-n_rows // ROW_BLOCK) * -(-groups // panel)


def scratch_bytes(isa: Isa) -> int:
    """Scratch a thread needs: the last columns of C, their initial sums, and the sums of tiles."""
    return _TILED_AT + (sums_bytes(ROW_BLOCK, _TILED_GROUPS) if isa.has_tiles else 0)


def matmul_integer_name(form: IntegerForm, is_float: bool, activation: str | None = None) -> str:
    """The kernel's name."""
    words = [
        "matmul_integer",
        form.value,
        *(["float"] if is_float else []),
        *([activation] if activation else []),
    ]
    return "_".join(words)


def matmul_integer_ir(isa: Isa, form: IntegerForm, is_float: bool, activation: str | None = None) -> str:
    """The kernel with MatmulIntegerArgs whose C is float32 if `is_float`, else int32."""
    module = Module(isa)
    full = _tile_rows(isa, form)
    for rows in range(1, full + 1):
        _write_tile(module, rows, form, is_float)
    has_tiles = isa.has_tiles and form is IntegerForm.BYTES
    if has_tiles:
        write_tile_rows(module, "int8")
        _write_finish(module, is_float)
    write_copy_columns(module)
    if activation:
        write_activate(module, vmath.ACTIVATIONS[activation])
    with module.kernel(matmul_integer_name(form, is_float, activation)) as f:
        args, lo, hi, _ = f.params
        config = config_space(f) if has_tiles else None
        n_rows, n_columns, panel = f.fields(args, MatmulIntegerArgs, "n_rows", "n_columns", "panel")
        n_groups = (n_columns + (COLUMNS - 1)) >> 4
        n_panels = (n_groups + panel - 1) // panel
        with f.each(lo, hi) as unit:
            row = unit // n_panels * ROW_BLOCK
            first = unit % n_panels * panel
            last = f.least(first + panel, n_groups)
            if config is not None:
                n = f.least(n_rows - row, ROW_BLOCK)
                first = _write_in_tiles(f, config, (first, last), row, n, bool(activation))
            with f.each(first, last) as group:
                _write_group(f, form, group, row, f.least(n_rows - row, ROW_BLOCK), bool(activation))
        if config is not None:
            release_tiles(f, config)
    return module.text()


def _write_in_tiles(
    f: Function, config: Value, ends: tuple[Value, Value], row: Value, rows: Value, has_activation: bool
) -> Value:
    """Column groups between `ends`, two at a time, if `rows` use tiles; returns the first not computed."""
    args, _, _, scratch = f.params
    a, b, words = f.fields(args, MatmulIntegerArgs, "a", "b", "words")
    first, last = ends
    is_tiled = takes_tiles(rows, "int8")
    sums, whole = f.at(scratch, _TILED_AT, "i8"), last - (last - first) % _TILED_GROUPS
    left = LeftRows(f.at(a, row * words, "i32"), words * 4, f.const(0))

    def panel(group: Value, groups: int) -> None:
        columns = [f.at(b, (group + g) * words * COLUMNS, "i32") for g in range(groups)]
        multiply_in_blocks(f, "int8", config, left, columns, sums, rows, words)
        for g in range(groups):
            tiled = f.at(sums, TILE * g, "i8"), f.const(TILE * groups)
            _write_group(f, IntegerForm.BYTES, group + g, row, rows, has_activation, tiled)

    with f.when(is_tiled):
        with f.each(first, whole, _TILED_GROUPS) as group:
            panel(group, _TILED_GROUPS)
        with f.each(whole, last) as group:
            panel(group, 1)
    return f.select(is_tiled, last, first)


def _write_group(
    f: Function,
    form: IntegerForm,
    group: Value,
    row: Value,
    rows: Value,
    has_activation: bool,
    tiled: tuple[Value, Value] | None = None,
) -> None:
    """One column group of a block of rows; the last columns are computed in scratch.

    `tiled` are its sums if tiles computed them: the first block of 16 rows, and the bytes to the next.
    """
    args, _, _, scratch = f.params
    names = ("a", "b", "c", "a_scale", "b_scales", "bias", "residual", "n_columns", "words")
    a, b, c, a_scale, b_scales, bias, residual, n_columns, words = f.fields(args, MatmulIntegerArgs, *names)
    column = group * COLUMNS
    width = f.least(n_columns - column, COLUMNS)
    is_tail = width < COLUMNS
    null, wide = f.const(0, "ptr"), f.const(COLUMNS)
    c_here = f.at(c, row * n_columns + column)
    residual_here = f.select(residual.compare("eq", 0), null, f.at(residual, row * n_columns + column))
    to = f.select(is_tail, scratch, c_here)
    ldc = f.select(is_tail, wide, n_columns)
    has_residual = residual_here.compare("ne", 0)
    with f.when(is_tail & has_residual):
        f.call("copy_columns", "void", residual_here, n_columns, rows, width, to, wide)
    added = f.select(is_tail & has_residual, to, residual_here)
    block = f.at(b, group * words * (COLUMNS * form.packing * form.b_bytes), "i8")
    scales, biases = f.at(b_scales, column), f.at(bias, column)
    start = _starts(f, column) if form is IntegerForm.BYTES else null
    full = _tile_rows(f.isa, form)

    def tile(n: int, at: Value) -> None:
        here = f.at(to, at * ldc)
        more = f.select(added.compare("eq", 0), null, f.at(added, at * ldc))
        a_here = f.at(a, (row + at) * words, "i32")
        f.call(f"tile_{n}", "void", a_here, block, here, a_scale, scales, biases, more, start, ldc, words)
        if has_activation:
            f.call("activate", "void", here, ldc, f.const(n), wide)

    if tiled is None:
        n_full = rows // full * full
        with f.each(0, n_full, full) as at:
            tile(full, at)
        f.match(rows - n_full, {n: partial(tile, n, n_full) for n in range(1, full)})
    else:
        f.call("finish", "void", *tiled, to, a_scale, scales, biases, added, start, ldc, rows)
        if has_activation:
            f.call("activate", "void", to, ldc, rows, wide)
    with f.when(is_tail):
        f.call("copy_columns", "void", to, wide, rows, width, c_here, n_columns)


def _write_finish(module: Module, is_float: bool) -> None:
    """`finish(sums, block, c, ...)`: C from the sums of tiles, as vector tiles compute it from theirs."""
    params = [("sums", "ptr"), ("block", "i64")]
    params += [(n, "ptr") for n in ("c", "a_scale", "b_scales", "bias", "added", "start")]
    params += [("ldc", "i64"), ("rows", "i64")]
    with module.function("finish", params, attributes="noinline", is_exported=False) as f:
        sums, block, c, a_scale, b_scales, bias, added, start, ldc, rows = f.params
        integers, null = vector(f.lanes, "i32"), f.const(0, "ptr")
        places = range(0, COLUMNS, f.lanes)
        with f.each(0, rows) as row:
            here = f.at(f.at(sums, (row >> 4) * block, "i8"), (row & (TILE_ROWS - 1)) * COLUMNS, "i32")
            begin = [f.load(f.at(start, v, "i32"), integers) for v in places]
            totals = [f.load(f.at(here, v, "i32"), integers) + x for v, x in zip(places, begin, strict=True)]
            to, more = f.at(c, row * ldc), f.select(added.compare("eq", 0), null, f.at(added, row * ldc))
            if is_float:
                _store_floats(f, totals, (to, ldc), a_scale, b_scales, bias, more)
            else:
                for v, total in zip(places, totals, strict=True):
                    f.store(total, f.at(to, v, "i32"))
        f.ret()


def _starts(f: Function, column: Value) -> Value:
    """Initial values of 16 sums: minus A's zero point times B's column sums. In scratch, after the last
    columns.
    """
    args, _, _, scratch = f.params
    names = ("sums", "a_zero", "zero_is_signed", "zero_shift")
    sums, a_zero, is_signed, shift = f.fields(args, MatmulIntegerArgs, *names)

    def given() -> list[Value]:
        byte = f.load(a_zero, "i8")
        wide = [f.cast(how, byte, "i64") for how in ("sext", "zext")]
        return [f.select(is_signed.compare("ne", 0), *wide)]

    zero = f.choose(a_zero.compare("ne", 0), given, lambda: [f.const(0)])[0] + shift
    less = f.splat(-f.cast("trunc", zero, "i32"))
    to = f.at(scratch, COLUMNS * ROW_BLOCK, "i32")
    for v in range(0, COLUMNS, f.lanes):
        of_columns = f.load(f.at(sums, column + v, "i32"), vector(f.lanes, "i32"))
        f.store(of_columns * less, f.at(to, v, "i32"))
    return to


def _tile_rows(isa: Isa, form: IntegerForm) -> int:
    """Rows whose sums stay in registers with products and row addresses; few if everything is emulated."""
    if isa.is_portable:
        return 3
    is_bytes = form is IntegerForm.BYTES
    match isa.name:
        case "avx512":
            return 11
        case "avx2":
            return 6 if is_bytes else 4
        case "neon":
            return 6 if is_bytes else 5
        case _:
            return 2


def _write_tile(module: Module, rows: int, form: IntegerForm, is_float: bool) -> None:
    """`rows` rows of C, 16 columns, all of K."""
    params = [(n, "ptr") for n in ("a", "b", "c", "a_scale", "b_scales", "bias", "added", "start")]
    params += [("ldc", "i64"), ("words", "i64")]
    with module.function(f"tile_{rows}", params, attributes="noinline", is_exported=False) as f:
        a, b, c, a_scale, b_scales, bias, added, start, ldc, words = f.params
        vectors = COLUMNS // f.lanes
        a_rows = [f.at(a, words * i, "i32") for i in range(rows)]
        integers = vector(f.lanes, "i32")
        add = add_quads if form is IntegerForm.BYTES else add_pairs

        def step(word: Value, sums: list[Value]) -> list[Value]:
            columns = [_columns(f, form, b, word * COLUMNS + v * f.lanes) for v in range(vectors)]
            for i, p in enumerate(a_rows):
                x = splat_word(f, f.load(f.at(p, word, "i32"), "i32", form.a_bytes))
                of_row = slice(i * vectors, (i + 1) * vectors)
                sums[of_row] = f.keep_sums(
                    [add(f, t, x, y) for t, y in zip(sums[of_row], columns, strict=True)]
                )
            return sums

        if form is IntegerForm.BYTES:
            begin = [f.load(f.at(start, v * f.lanes, "i32"), integers) for v in range(vectors)]
        else:
            begin = [f.const(0, integers)] * vectors
        whole = words & -_UNROLL
        in_blocks = f.isa.has_matmul and form is IntegerForm.BYTES
        first = exchange_halves(f, begin * rows, vectors) if in_blocks else begin * rows
        with f.loop(0, whole, _UNROLL, carry=first) as loop:
            sums = list(loop.carried)
            for i in range(0, _UNROLL, 2 if in_blocks else 1):
                word = loop.index + i
                sums = add_blocks(f, a_rows, b, word, sums) if in_blocks else step(word, sums)
            loop.carry(sums)
        done = exchange_halves(f, loop.carried, vectors) if in_blocks else loop.carried
        with f.loop(whole, words, carry=done) as rest:
            rest.carry(step(rest.index, list(rest.carried)))
        if is_float:
            _store_floats(f, rest.carried, (c, ldc), a_scale, b_scales, bias, added)
        else:
            for n, total in enumerate(rest.carried):
                row, v = divmod(n, vectors)
                f.store(total, f.at(c, ldc * row + v * f.lanes, "i32"))
        f.ret()


def _columns(f: Function, form: IntegerForm, b: Value, word: Value) -> Value:
    """A vector of B's words."""
    integers = vector(f.lanes, "i32")
    if form is not IntegerForm.WIDENED:
        return f.load(f.at(b, word, "i32"), integers, 4 * f.lanes)
    narrow = f.load(f.at(b, word, "i16"), vector(2 * f.lanes, "i8"), 2 * f.lanes)
    return f.cast("bitcast", f.cast("sext", narrow, vector(2 * f.lanes, "i16")), integers)


def _store_floats(
    f: Function,
    sums: list[Value],
    c: tuple[Value, Value],
    a_scale: Value,
    b_scales: Value,
    bias: Value,
    added: Value,
) -> None:
    vectors = COLUMNS // f.lanes
    scale = f.splat(f.load(a_scale))
    by = [f.load(f.at(b_scales, v * f.lanes), f.vec) * scale for v in range(vectors)]
    plus = [f.load(f.at(bias, v * f.lanes), f.vec) for v in range(vectors)]
    results = [
        f.fma(f.cast("sitofp", total, f.vec), by[n % vectors], plus[n % vectors])
        for n, total in enumerate(sums)
    ]
    places = [c[1] * (n // vectors) + n % vectors * f.lanes for n in range(len(sums))]

    def with_added() -> list[Value]:
        return [x + f.load(f.at(added, at), f.vec) for x, at in zip(results, places, strict=True)]

    results = f.choose(added.compare("ne", 0), with_added, lambda: results)
    for x, at in zip(results, places, strict=True):
        f.store(x, f.at(c[0], at))
