"""Fused attention: softmax(scale * q k^T + mask) v without the score matrix.

Vector lanes are query rows. A unit is a head and a block of up to `block_rows` rows: its queries are
transposed into scratch, so that scores come out as [key][row] (a broadcast of k times vectors of q),
softmax runs down columns with no sums across lanes, and the output is a broadcast of v times vectors
of weights. Only the block's scores exist, in scratch. Keys and values of a head are copied there too,
once per head, because their rows are a power of two apart and would map to few cache sets.
"""

import ctypes
from dataclasses import replace
from functools import partial
from math import e as euler
from math import log2

from pliant.kernels.attention.attention_bf16 import (
    copy_to_tiles,
    lay_out_tiles,
    score_in_tiles,
    tiled_floats,
    weigh_in_tiles,
)
from pliant.kernels.attention.attention_mask import add_mask, mask_later_keys
from pliant.kernels.attention.attention_steps import (
    BlockShape,
    copy_head,
    exponentiate,
    fill_queries,
    lay_out,
    score,
    scratch_floats,
    weigh,
    write_rows,
)
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.tiles.tile_rows import config_space, release_tiles, write_tile_rows

_AXES = ("batch", "head", "row")
_TILED = "_tiled"
_MOST_ROWS_IN_VECTORS = 8
"""Up to this many query rows, vectors are used; for more rows, tiles. Splitting keys and values for tiles
costs as much as a few rows.
"""


class AttentionArgs(ctypes.Structure):
    """out[b, h, t] = softmax(scale * q[b, h, t] k[b, g]^T + mask[b, h, t]) v[b, g] with g = h // group.

    float32; strides in floats, of batch, head and row; columns are contiguous. `mask` (null for none) is
    added; its stride is 0 along dimensions on which it does not depend. With `is_causal` row t sees keys up
    to t + `shift`. A row that sees no key is NaN, or zero if `is_empty_zero`.
    """

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        *((f"{name}_{d}", ctypes.c_int64) for name in ("q", "k", "v", "out", "mask") for d in _AXES),
        ("n_heads", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("n_tokens", ctypes.c_int64),
        ("is_causal", ctypes.c_int64),
        ("shift", ctypes.c_int64),
        ("is_empty_zero", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def qkv_args(
    qkv: int, ld_qkv: int, out: int, ld_out: int, n_heads: int, head_dim: int, scale: float
) -> AttentionArgs:
    """The arguments for one sequence: rows of qkv hold q, k and v of head 0, then of head 1, ...

    qkv and out are addresses; the caller sets `n_rows` and `n_tokens`.
    """
    wide = 3 * head_dim
    args = AttentionArgs(q=qkv, k=qkv + 4 * head_dim, v=qkv + 8 * head_dim, out=out, n_heads=n_heads, group=1)
    for name in ("q", "k", "v"):
        setattr(args, f"{name}_head", wide)
        setattr(args, f"{name}_row", ld_qkv)
    args.out_head, args.out_row, args.scale = head_dim, ld_out, scale
    return args


def block_vectors(isa: Isa) -> int:
    """Vectors of rows in a full block: with 4 broadcasts, 12 sums fill AVX2's 16 registers.

    Without FMA a product takes one more; tiles go in pairs.
    """
    return 3 if isa.has_fma and not isa.has_tiles else 2


def block_rows(isa: Isa) -> int:
    """Query rows of one unit."""
    return block_vectors(isa) * isa.lanes


def blocks(n_tokens: int, isa: Isa) -> int:
    """Row blocks of a sequence; unit u is block u % blocks of head u // blocks."""
    return -(-n_tokens // block_rows(isa))


def units(n_heads: int, n_tokens: int, isa: Isa) -> int:
    """Units of attention over `n_heads` heads."""
    return n_heads * blocks(n_tokens, isa)


def grain(n_heads: int, n_tokens: int, isa: Isa, n_threads: int) -> int:
    """Units to take at a time: whole heads if every thread gets one, so that each head is copied once."""
    return blocks(n_tokens, isa) if n_heads % n_threads == 0 or n_heads >= 4 * n_threads else 1


def scratch_bytes(head_dim: int, n_tokens: int, isa: Isa, value_dim: int | None = None) -> int:
    """Scratch bytes per thread for up to `n_tokens` keys."""
    sizes = head_dim, value_dim or head_dim, n_tokens, block_rows(isa)
    return 4 * max(scratch_floats(*sizes), tiled_floats(*sizes) if isa.has_tiles else 0)


def attention_name(head_dim: int, value_dim: int | None = None) -> str:
    """The kernel's name for heads of `head_dim` columns, and values of `value_dim` columns."""
    return f"attention{head_dim}" if value_dim in (None, head_dim) else f"attention{head_dim}_{value_dim}"


def attention_ir(isa: Isa, head_dim: int, value_dim: int | None = None) -> str:
    """The kernel `attention_name(...)` with AttentionArgs."""
    module = Module(isa)
    shape = write_blocks(module, head_dim, value_dim or head_dim)
    with module.kernel(attention_name(head_dim, value_dim)) as f:
        args, lo, hi, scratch = f.params
        (n_rows,) = f.fields(args, AttentionArgs, "n_rows")
        n_heads, group = f.fields(args, AttentionArgs, "n_heads", "group")
        rows = block_rows(isa)
        per_head = (n_rows + (rows - 1)) // rows
        with f.loop(lo, hi, carry=[f.const(-1), f.const(-1)]) as loop:
            whole = loop.index // per_head
            batch, head = whole // n_heads, whole % n_heads
            shared = head // group
            is_new = batch.compare("ne", loop.carried[0]) | shared.compare("ne", loop.carried[1])
            with f.when(is_new):
                copy_head_to_scratch(f, args, scratch, batch, shared, shape)
            first = (loop.index % per_head) * rows
            call_block(f, args, scratch, batch, head, first, n_rows)
            loop.carry([batch, shared])
        end_blocks(f)
    return module.text()


def write_blocks(module: Module, key_dim: int, value_dim: int) -> BlockShape:
    """Define the functions that `call_block` calls, for heads of these columns; returns the shape of
    blocks of one vector, for `copy_head`.
    """
    isa = module.isa
    shapes = [
        BlockShape(key_dim, value_dim, n, block_rows(isa), isa.lanes, isa.registers)
        for n in range(1, block_vectors(isa) + 1)
    ]
    if isa.has_tiles:
        write_tile_rows(module, "bf16", 2)
        shapes += [replace(shape, is_tiled=True) for shape in shapes]
    for shape in shapes:
        _write_attend(module, shape)
    return shapes[0]


def copy_head_to_scratch(
    f: Function, args: Value, scratch: Value, batch: Value, head: Value, shape: BlockShape
) -> None:
    """Copy a head's keys and values to scratch, for all blocks of its rows."""
    n_rows, n_tokens = f.fields(args, AttentionArgs, "n_rows", "n_tokens")
    k, v = (head_rows(f, args, name, batch, head) for name in ("k", "v"))

    def to_vectors() -> list[Value]:
        copy_head(f, k, v, n_tokens, lay_out(f, scratch, n_tokens, shape), shape)
        return []

    def to_tiles() -> list[Value]:
        copy_to_tiles(f, k, v, n_tokens, lay_out_tiles(f, scratch, n_tokens, shape), shape)
        return []

    if f.isa.has_tiles:
        f.choose(n_rows > _MOST_ROWS_IN_VECTORS, to_tiles, to_vectors)
    else:
        to_vectors()


def end_blocks(f: Function) -> None:
    """Emit the code after the last block of a kernel."""
    if f.isa.has_tiles:
        release_tiles(f, f.const(0, "ptr"))


def call_block(
    f: Function, args: Value, scratch: Value, batch: Value, head: Value, first: Value, n_rows: Value
) -> None:
    """Attend to the rows from row `first` of `n_rows` on; scratch holds the keys and values of the head."""
    n_vectors = f.least((n_rows - first + (f.lanes - 1)) // f.lanes, block_vectors(f.isa))

    def call(kind: str, vectors: int) -> None:
        f.call(f"attend{vectors}{kind}", "void", args, scratch, batch, head, first)

    def calls(kind: str) -> list[Value]:
        f.match(n_vectors, {n: partial(call, kind, n) for n in range(1, block_vectors(f.isa) + 1)})
        return []

    if f.isa.has_tiles:
        f.choose(n_rows > _MOST_ROWS_IN_VECTORS, partial(calls, _TILED), partial(calls, ""))
    else:
        calls("")


def head_rows(f: Function, args: Value, name: str, batch: Value, head: Value) -> tuple[Value, Value]:
    """The first row of a head, and its row stride."""
    pointer, by_batch, by_head, row = f.fields(
        args, AttentionArgs, name, f"{name}_batch", f"{name}_head", f"{name}_row"
    )
    return f.at(pointer, batch * by_batch + head * by_head), row


def _write_attend(module: Module, shape: BlockShape) -> None:
    """`attend<vectors>(args, scratch, batch, head, first)`: one block of rows, from row `first` on."""
    params = [("args", "ptr"), ("scratch", "ptr"), ("batch", "i64"), ("head", "i64"), ("first", "i64")]
    name = f"attend{shape.vectors}{_TILED if shape.is_tiled else ''}"
    with module.function(name, params, attributes="noinline", is_exported=False) as f:
        config = config_space(f) if shape.is_tiled else None
        args, scratch, batch, head, first = f.params
        names = ("n_rows", "n_tokens", "scale", "mask", "is_causal", "shift", "is_empty_zero")
        n_rows, n_tokens, scale, mask, is_causal, shift, is_empty_zero = f.fields(args, AttentionArgs, *names)
        tiled = lay_out_tiles(f, scratch, n_tokens, shape) if shape.is_tiled else None
        arrays = tiled.plain if tiled else lay_out(f, scratch, n_tokens, shape)
        # Lanes past the last row repeat it, so that no read is out of bounds; their results are not stored.
        rows = [f.least(first + i, n_rows - 1) for i in range(shape.rows)]
        q = head_rows(f, args, "q", batch, head)
        factor = scale * log2(euler)
        # Keys that no row of the block sees are skipped, except one, so that there is a maximum.
        seen = f.least(first + shape.rows + shift, n_tokens)
        seen = f.select(seen < 1, f.const(1), seen)
        n_keys = f.select(is_causal.compare("ne", 0), seen, n_tokens)
        if tiled and config:
            tops = score_in_tiles(f, shape, config, q, rows, factor, n_keys, tiled)
        else:
            fill_queries(f, shape, *q, rows, factor, arrays.queries)
            tops = score(f, shape, n_keys, arrays)

        def masked() -> list[Value]:
            start, ld = head_rows(f, args, "mask", batch, head)
            return add_mask(f, shape, n_keys, arrays, start, ld, rows)

        tops = f.choose(mask.compare("ne", 0), masked, lambda: tops)
        tops = f.choose(
            is_causal.compare("ne", 0),
            lambda: mask_later_keys(f, shape, n_keys, arrays, first + shift),
            lambda: tops,
        )
        shares = exponentiate(f, shape, n_keys, arrays, tops)
        zeroes = f.splat(is_empty_zero.compare("ne", 0))
        empty = [share.compare("uno", share) & zeroes for share in shares]
        if tiled and config:
            weigh_in_tiles(f, shape, config, n_keys, tiled, shares, empty)
        else:
            weigh(f, shape, n_tokens, n_keys, arrays, shares, empty)
        out, ld_out = head_rows(f, args, "out", batch, head)
        destination = f.at(out, first * ld_out)
        write_rows(f, shape, f.least(n_rows - first, shape.rows), arrays.outputs, destination, ld_out)
        f.ret()
