"""Sum rows of embedding tables into activations, decoding 6-bit codes on the fly.

A unit is one token. Its row is the sum of the word's row by `ids`, the position's row, and the type's row by
`types`. Columns are processed eight at a time on every ISA, one byte of a bit-plane.
"""

import ctypes
from dataclasses import dataclass
from typing import Literal

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.spans import ColumnSpan, visit_columns, write_zeros
from pliant.kernels.emit.values import Value, vector

EmbedFormat = Literal["codes", "F32", "F16", "BF16"]

_PLANES = 6
_COLUMNS = 8
_BYTES: dict[EmbedFormat, int] = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class EmbedFormats:
    """The storage format of each table; `codes` is that of models/word_table.py.

    `type` is None without token types.
    """

    word: EmbedFormat
    position: EmbedFormat
    type: EmbedFormat | None


class EmbedArgs(ctypes.Structure):
    """out[t] = word[ids[t]] + position[t + first_position] + type[types[t]] over n columns.

    Zeros follow up to n_padded. ids and types are int32 and are not checked; a codebook is float32[64], null
    if the table is not `codes`; out is float32 with its row stride in floats.
    """

    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("types", ctypes.c_void_p),
        ("word", ctypes.c_void_p),
        ("word_codebook", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("position_codebook", ctypes.c_void_p),
        ("type", ctypes.c_void_p),
        ("type_codebook", ctypes.c_void_p),
        ("first_position", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("ld_out", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("n_padded", ctypes.c_int64),
    )


def embed_name(formats: EmbedFormats) -> str:
    """The kernel's name for tables stored as `formats`."""
    return "_".join(["embed", formats.word, formats.position, formats.type or "none"])


def embed_ir(isa: Isa, formats: EmbedFormats) -> str:
    """The kernel `embed_name(formats)` with EmbedArgs for tables stored as `formats`."""
    module = Module(isa)
    with module.kernel(embed_name(formats)) as f:
        args, lo, hi, _ = f.params
        ids, types, first = f.fields(args, EmbedArgs, "ids", "types", "first_position")
        out, ld, n, n_padded = f.fields(args, EmbedArgs, "out", "ld_out", "n", "n_padded")
        with f.each(lo, hi) as token:
            parts = [
                _TableRow(f, args, "word", formats.word, _read_number(f, ids, token), n),
                _TableRow(f, args, "position", formats.position, token + first, n),
            ]
            if formats.type is not None:
                parts.append(_TableRow(f, args, "type", formats.type, _read_number(f, types, token), n))
            row = f.at(out, token * ld)
            _sum_rows(f, n, parts, row)
            write_zeros(f, row, n, n_padded)
    return module.text()


def _sum_rows(f: Function, n: Value, parts: "list[_TableRow]", row: Value) -> None:
    def visit(span: ColumnSpan, _: list[Value]) -> list[Value]:
        total = parts[0].read(span)
        for part in parts[1:]:
            total = total + part.read(span)
        span.store(total, row)
        return []

    visit_columns(f, n, visit, lanes=_COLUMNS)


def _read_number(f: Function, array: Value, i: Value) -> Value:
    return f.cast("sext", f.load(f.at(array, i, "i32"), "i32"), "i64")


class _TableRow:
    """One row of one table, read by columns."""

    def __init__(self, f: Function, args: Value, name: str, form: EmbedFormat, row: Value, n: Value) -> None:
        self._f, self._form = f, form
        table, self._codebook = f.fields(args, EmbedArgs, name, f"{name}_codebook")
        self._plane_bytes = (n + 7) >> 3
        row_bytes = self._plane_bytes * _PLANES if form == "codes" else n * _BYTES[form]
        self._row = f.at(table, row * row_bytes, "i8")

    def read(self, span: ColumnSpan) -> Value:
        match self._form:
            case "codes":
                return self._decode(span)
            case "F32":
                return span.load(self._row)
            case "F16":
                return vmath.half_to_float(self._f, span.load(self._row, "i16"))
            case "BF16":
                return vmath.bfloat_to_float(self._f, span.load(self._row, "i16"))

    def _decode(self, span: ColumnSpan) -> Value:
        """Columns past the end have zero bits: code 0, which is not stored."""
        f, integers = self._f, vector(_COLUMNS, "i32")
        masks = f.const_lanes([1 << j for j in range(_COLUMNS)], "i32")
        codes = f.const(0, integers)
        for plane in range(_PLANES):
            byte = f.load(f.at(self._row, self._plane_bytes * plane + (span.first >> 3), "i8"), "i8")
            bits = f.splat(f.cast("zext", byte, "i32"), _COLUMNS) & masks
            is_set = bits.compare("ne", 0)
            codes = codes | f.select(
                is_set, f.const(1 << (_PLANES - 1 - plane), integers), f.const(0, integers)
            )
        result = f.const(0, vector(_COLUMNS, "float"))
        for lane in range(_COLUMNS):
            code = f.cast("zext", f.extract(codes, lane), "i64")
            result = f.insert(result, f.load(f.at(self._codebook, code)), lane)
        return result
