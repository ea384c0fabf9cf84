"""Blocks of B as pairs of bfloat16: i32 [rows / 2][16], whose low halves are the even rows."""

from collections.abc import Sequence

import numpy as np

from pliant.arrays import Float, UInt8
from pliant.kernels.coded.decode import WeightSink, decode_columns, decode_table
from pliant.kernels.coded.decode_bytes import weave
from pliant.kernels.coded.decode_permute import decode_pairs_by_permutes, table_64
from pliant.kernels.coded.fill import (
    FORMS,
    GROUP_ROWS,
    BlockFormat,
    full_element,
    locate_slice,
    upcast,
    write_fill,
)
from pliant.kernels.coded.gemm_args import BF16, BF16_PAIRS, GemmArgs, SliceDesc
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.product.bf16_pairs import round_one, round_pairs, round_remainder
from pliant.kernels.runtime.aligned_memory import aligned_bytes

_UPPER = -65536


def decode_table_bf16(
    codebook: Float[np.ndarray, "centroids"], bits: int, isa: Isa
) -> UInt8[np.ndarray, "bytes"]:
    """As `decode_table`, for blocks of pairs."""
    if not isa.has_byte_permute:
        return decode_table(codebook, bits, isa)
    words = np.ascontiguousarray(codebook, np.float32).view(np.int32)
    assert not (words & 0xFFFF).any(), "centroids must be rounded to bfloat16"
    table = aligned_bytes(2 * 256)
    table[:] = np.concatenate([table_64((words >> shift).astype(np.uint8), bits) for shift in (16, 24)])
    return table


def write_fill_lower(module: Module) -> None:
    """Define `lower_block`: the remainder of B after rounding to bfloat16, as bfloat16; and `has_lower(args,
    column group)`.

    Centroids are exact bfloat16: only outliers and full fidelity have lower parts, and resident pairs whose
    lower parts are resident too.
    """
    block = BlockFormat(
        2 * COLUMNS, BF16_PAIRS, _decode_zeros, _convert_lower, _put_lower, prefix="lower_", place="table"
    )
    write_fill(module, (*FORMS, BF16_PAIRS), block)
    with module.function(
        "has_lower", [("args", "ptr"), ("group", "i64")], "i64", attributes="noinline", is_exported=False
    ) as f:
        args, group = f.params
        n_segments, per_slice = f.fields(args, GemmArgs, "n_segments", "column_groups_per_slice")
        with f.loop(0, n_segments, carry=[f.const(0)]) as loop:
            desc, _, first_column = locate_slice(f, args, group // per_slice + loop.index)
            bits, starts, lower = f.fields(desc, SliceDesc, "bits", "outlier_rows", "table")

            def outliers() -> list[Value]:
                at = first_column + group % per_slice
                first, last = (f.load(f.at(starts, i, "i32"), "i32") for i in (at, at + 1))
                return [f.cast("zext", last - first, "i64")]

            is_exact = bits.compare("eq", BF16) | (bits.compare("eq", BF16_PAIRS) & lower.compare("eq", 0))
            full = f.select(is_exact, f.const(0), f.const(1))
            found = f.choose(bits <= 6, outliers, lambda: [full])
            loop.carry([loop.carried[0] + found[0]])
        f.ret(loop.carried[0])


def write_fill_bf16(module: Module) -> None:
    """Define `block`, as `write_fill` does, for slices of every form."""
    write_fill(module, (*FORMS, BF16_PAIRS), BlockFormat(2 * COLUMNS, BF16_PAIRS, _decode, _convert, _put))


def decode_pairs_bf16(f: Function, planes: Sequence[Value], table: Value, emit: WeightSink) -> None:
    """Call `emit(i, pairs)` with rows 2i and 2i + 1 of a group, as pairs in i32 lanes."""
    if f.isa.has_byte_permute:
        words = [f.load(p, vector(f.lanes, "i32"), 4 * f.lanes) for p in planes]
        decode_pairs_by_permutes(f, words, weave(words), table, emit)
        return
    before: list[Value] = []

    def pairs(row: int, x: Value) -> None:
        number = f.cast("bitcast", x, vector(f.lanes, "i32"))
        if row % 2:
            emit(row // 2, (before.pop() >> 16) | (number & _UPPER))
        else:
            before.append(number)

    decode_columns(f, planes, table, pairs)


def _decode(f: Function, planes: Sequence[Value], table: Value, to: Value) -> None:
    def emit(i: int, pairs: Value) -> None:
        f.store(pairs, f.at(to, i * COLUMNS), 4 * f.lanes)

    decode_pairs_bf16(f, planes, table, emit)


def _convert(f: Function, source: Value, bits: int, to: Value, count: Value) -> None:
    """Convert full fidelity, rounding to nearest even."""
    words, element = vector(f.lanes, "i32"), full_element(bits)
    with f.each(0, count * (GROUP_ROWS // 2)) as i, f.each(0, COLUMNS, f.lanes) as column:
        here = f.at(to, i * COLUMNS + column, "i32")
        if bits == BF16_PAIRS:  # a block that spans several slices
            pairs = f.load(f.at(source, i * COLUMNS + column, "i32"), words)
        else:
            two = [f.at(source, (i * 2 + row) * COLUMNS + column, element) for row in range(2)]
            first, second = (f.load(p, vector(f.lanes, element)) for p in two)
            if bits == BF16:
                pairs = f.cast("zext", first, words) | (f.cast("zext", second, words) << 16)
            else:
                pairs = round_pairs(f, upcast(f, first, bits), upcast(f, second, bits))
        f.store(pairs, here, 4 * f.lanes)


def _put(f: Function, value: Value, to: Value, offset: Value) -> None:
    row, column = offset >> 4, offset & (COLUMNS - 1)
    place = ((row >> 1) * COLUMNS + column) * 2 + (row & 1)
    f.store(round_one(f, value), f.at(to, place, "i16"))


def _decode_zeros(f: Function, planes: Sequence[Value], table: Value, to: Value) -> None:
    zeros = f.const(0, vector(f.lanes, "i32"))
    for i in range(GROUP_ROWS // 2):
        f.store(zeros, f.at(to, i * COLUMNS), 4 * f.lanes)


def _convert_lower(f: Function, source: Value, bits: int, to: Value, count: Value) -> None:
    words, element = vector(f.lanes, "i32"), full_element(bits)
    with f.each(0, count * (GROUP_ROWS // 2)) as i, f.each(0, COLUMNS, f.lanes) as column:
        two = [f.at(source, (i * 2 + row) * COLUMNS + column, element) for row in range(2)]
        lower = f.const(0, words)
        if bits not in (BF16, BF16_PAIRS):
            numbers = (upcast(f, f.load(p, vector(f.lanes, element)), bits) for p in two)
            lower = round_pairs(f, *(round_remainder(f, x) for x in numbers))
        f.store(lower, f.at(to, i * COLUMNS + column, "i32"), 4 * f.lanes)


def _put_lower(f: Function, value: Value, to: Value, offset: Value) -> None:
    _put(f, round_remainder(f, value), to, offset)
