"""Fused attention: softmax(scale * q k^T) v without the score matrix. Knows the qkv buffer, no weights.

Vector lanes are query rows. A unit is a head and a block of up to `block_rows` rows: its queries are
transposed into scratch, so that scores come out as [key][row] (a broadcast of k times vectors of q),
softmax runs down columns with no sums across lanes, and the output is a broadcast of v times vectors
of weights. Only the block's scores exist, in scratch. Keys and values of a head are copied there too,
once per head, because their rows lie a power of two apart and would share a few cache sets.
"""

import ctypes
from collections.abc import Callable
from math import e as euler
from math import log2

from pliant.errors import KernelError
from pliant.kernels.attention_tiles import (
    Strip,
    copy_head,
    exponentiate,
    fill_queries,
    lay_out,
    score,
    scratch_floats,
    weigh,
    write_rows,
)
from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.values import Value

_VECTORS = 3  # of rows in a full block: with 4 broadcasts, 12 sums fill AVX2's 16 registers


class AttentionArgs(ctypes.Structure):
    """out[t, h * head_dim + c] for heads h: float32 rows, strides in floats.

    qkv is [n_tokens, ld_qkv] with columns (h * 3 + part) * head_dim + c, part 0 to 2 for q, k and v;
    `scale` is 1 / sqrt(unpadded head_dim).
    """

    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("ld_qkv", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("ld_out", ctypes.c_int64),
        ("n_tokens", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def block_rows(isa: Isa) -> int:
    """Query rows of one unit."""
    return _VECTORS * isa.lanes


def blocks(n_tokens: int, isa: Isa) -> int:
    """Row blocks of a sequence; unit u is block u % blocks of head u // blocks."""
    return -(-n_tokens // block_rows(isa))


def units(n_heads: int, n_tokens: int, isa: Isa) -> int:
    """Units of attention over `n_heads` heads."""
    return n_heads * blocks(n_tokens, isa)


def grain(n_heads: int, n_tokens: int, isa: Isa, n_threads: int) -> int:
    """Units to take at a time: whole heads where every thread gets one, so that each is copied once."""
    return blocks(n_tokens, isa) if n_heads % n_threads == 0 or n_heads >= 4 * n_threads else 1


def scratch_bytes(head_dim: int, n_tokens: int, isa: Isa) -> int:
    """What each thread needs for up to `n_tokens` rows."""
    return 4 * scratch_floats(head_dim, n_tokens, block_rows(isa))


def attention_name(head_dim: int) -> str:
    """The kernel's name for heads of `head_dim` columns."""
    return f"attention{head_dim}"


def attention_ir(isa: Isa, head_dim: int) -> str:
    """The kernel `attention_name(head_dim)` with AttentionArgs; `head_dim` is a multiple of 16."""
    if head_dim % 16 or head_dim < 16:
        raise KernelError(f"attention needs heads padded to a multiple of 16 columns, not {head_dim}.")
    module = Module(isa)
    for vectors in range(1, _VECTORS + 1):
        _write_attend(module, Strip(head_dim, vectors, block_rows(isa), isa.lanes, isa.registers))
    with module.kernel(attention_name(head_dim)) as f:
        args, lo, hi, scratch = f.params
        qkv, ld_qkv, n_tokens = f.fields(args, AttentionArgs, "qkv", "ld_qkv", "n_tokens")
        rows = block_rows(isa)
        per_head = (n_tokens + (rows - 1)) // rows
        with f.loop(lo, hi, carry=[f.const(-1)]) as turn:
            head = turn.index // per_head
            with f.when(head.compare("ne", turn.carried[0])):
                arrays = lay_out(f, scratch, n_tokens, head_dim, rows)
                copy_head(f, f.at(qkv, head * (3 * head_dim)), ld_qkv, n_tokens, arrays, head_dim)
            first = (turn.index % per_head) * rows
            n_vectors = f.least((n_tokens - first + (isa.lanes - 1)) // isa.lanes, _VECTORS)
            f.match(n_vectors, {n: _call_attend(f, n, head, first) for n in range(1, _VECTORS + 1)})
            turn.carry([head])
    return module.text()


def _call_attend(f: Function, vectors: int, head: Value, first: Value) -> Callable[[], None]:
    args, _, _, scratch = f.params

    def call() -> None:
        f.call(f"attend{vectors}", "void", args, scratch, head, first)

    return call


def _write_attend(module: Module, strip: Strip) -> None:
    """`attend<vectors>(args, scratch, head, first)`: one block of rows, from row `first` on."""
    params = [("args", "ptr"), ("scratch", "ptr"), ("head", "i64"), ("first", "i64")]
    with module.function(f"attend{strip.vectors}", params, attributes="noinline", is_exported=False) as f:
        args, scratch, head, first = f.params
        qkv, ld_qkv, out, ld_out = f.fields(args, AttentionArgs, "qkv", "ld_qkv", "out", "ld_out")
        n_tokens, scale = f.fields(args, AttentionArgs, "n_tokens", "scale")
        arrays = lay_out(f, scratch, n_tokens, strip.head_dim, strip.block_rows)
        # Lanes past the last token repeat it: no read beyond the end, and nobody keeps their result.
        rows = [f.least(first + i, n_tokens - 1) for i in range(strip.rows)]
        q = f.at(qkv, head * (3 * strip.head_dim))
        fill_queries(f, strip, q, ld_qkv, rows, scale * log2(euler), arrays.queries)
        tops = score(f, strip, n_tokens, arrays)
        shares = exponentiate(f, strip, n_tokens, arrays, tops)
        weigh(f, strip, n_tokens, arrays, shares)
        destination = f.at(out, first * ld_out + head * strip.head_dim)
        write_rows(f, strip, f.least(n_tokens - first, strip.rows), arrays.outputs, destination, ld_out)
        f.ret()
