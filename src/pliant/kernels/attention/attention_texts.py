"""Fused attention of several texts with concatenated rows; each text attends to itself.

A block of rows is computed as in `attention`, with the same operations in the same order. A unit is a block
of one text and one head; units are ordered by text, and within a text as in `attention`.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pliant.arrays import Int64
from pliant.kernels.attention import attention
from pliant.kernels.attention.attention import (
    AttentionArgs,
    block_rows,
    call_block,
    copy_head_to_scratch,
    end_blocks,
    write_blocks,
)
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

BLOCK_WORDS = 4
"""64-bit words per block in the result of `text_blocks`."""

_PORTIONS = 8
"""Portions per thread into which the units of several texts are divided."""
_OWN_BYTES = -(-ctypes.sizeof(AttentionArgs) // 64) * 64
_WORD_BYTES = 8
assert ctypes.sizeof(AttentionArgs) % _WORD_BYTES == 0


class TextsArgs(ctypes.Structure):
    """`attention` is that of the first text; its `n_rows` and `n_tokens` are not read.

    `blocks` int64 [n_blocks, BLOCK_WORDS] maps rows to texts. A mask has one batch index per text.
    """

    _fields_ = (("attention", AttentionArgs), ("blocks", ctypes.c_void_p))


@lru_cache(maxsize=1024)
def text_blocks(lengths: tuple[int, ...], isa: Isa) -> Int64[np.ndarray, "blocks 4"]:
    """For each block of rows of each text: the text's first row, its rows, the blocks before the text, and
    its number.

    Read-only, as the array is cached for the next batch of these lengths.
    """
    rows = np.asarray(lengths, np.int64)
    blocks = -(-rows // block_rows(isa))
    numbers = np.arange(len(rows))
    texts = np.stack([np.cumsum(rows) - rows, rows, np.cumsum(blocks) - blocks, numbers], axis=1)
    described = np.repeat(texts, blocks, axis=0)
    described.flags.writeable = False
    return described


def units(n_heads: int, lengths: Sequence[int], isa: Isa) -> int:
    """Units of attention over `n_heads` heads of texts of `lengths` rows."""
    return sum(attention.units(n_heads, n, isa) for n in lengths)


def grain(n_heads: int, lengths: Sequence[int], isa: Isa, n_threads: int) -> int:
    """Units to take at a time; for several texts few enough that threads finish at about the same time."""
    if len(lengths) == 1:
        return attention.grain(n_heads, lengths[0], isa, n_threads)
    return max(1, units(n_heads, lengths, isa) // (_PORTIONS * n_threads))


def scratch_bytes(head_dim: int, n_tokens: int, isa: Isa) -> int:
    """Scratch bytes per thread for texts of up to `n_tokens` rows."""
    return _OWN_BYTES + attention.scratch_bytes(head_dim, n_tokens, isa)


def texts_name(head_dim: int) -> str:
    """The kernel's name for heads of `head_dim` columns."""
    return f"attention{head_dim}_texts"


def texts_ir(isa: Isa, head_dim: int) -> str:
    """The kernel `texts_name(head_dim)` with TextsArgs."""
    module = Module(isa)
    shape = write_blocks(module, head_dim, head_dim)
    with module.kernel(texts_name(head_dim)) as f:
        args, lo, hi, own = f.params
        (blocks,) = f.fields(args, TextsArgs, "blocks")
        (n_heads,) = f.fields(args, AttentionArgs, "n_heads")
        scratch = f.at(own, _OWN_BYTES, "i8")
        zero, rows = f.const(0), block_rows(isa)
        with f.loop(lo, hi, carry=[f.const(-1), f.const(-1)]) as loop:
            block = f.at(blocks, loop.index // n_heads * BLOCK_WORDS, "i64")
            words = (f.load(f.at(block, i, "i64"), "i64") for i in range(BLOCK_WORDS))
            first_row, n_tokens, before, text = words
            per_head = (n_tokens + (rows - 1)) // rows
            unit = loop.index - before * n_heads
            head, first = unit // per_head, unit % per_head * rows
            is_new_text = before.compare("ne", loop.carried[0])
            with f.when(is_new_text):
                _write_own(f, args, own, first_row, n_tokens, text)
            with f.when(is_new_text | head.compare("ne", loop.carried[1])):
                copy_head_to_scratch(f, own, scratch, zero, head, shape)
            call_block(f, own, scratch, zero, head, first, n_tokens)
            loop.carry([before, head])
        end_blocks(f)
    return module.text()


def _write_own(f: Function, args: Value, own: Value, first_row: Value, n_tokens: Value, text: Value) -> None:
    """Write the AttentionArgs of one text."""
    with f.each(0, ctypes.sizeof(AttentionArgs) // _WORD_BYTES) as word:
        f.store(f.load(f.at(args, word, "i64"), "i64"), f.at(own, word, "i64"))

    def store(name: str, value: Value) -> None:
        f.store(value, f.at(own, getattr(AttentionArgs, name).offset, "i8"))

    for name in ("q", "k", "v", "out"):
        pointer, row = f.fields(args, AttentionArgs, name, f"{name}_row")
        store(name, f.at(pointer, first_row * row))
    mask, by_text = f.fields(args, AttentionArgs, "mask", "mask_batch")
    store("mask", f.select(mask.compare("eq", 0), mask, f.at(mask, text * by_text)))
    store("n_rows", n_tokens)
    store("n_tokens", n_tokens)
