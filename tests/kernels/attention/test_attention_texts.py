"""Attention of several texts at once: what each would be alone, whichever rows stand beside it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.kernels.attention.attention import block_rows, qkv_args
from pliant.kernels.attention.attention_texts import (
    TextsArgs,
    grain,
    scratch_bytes,
    text_blocks,
    texts_ir,
    texts_name,
    units,
)
from pliant.kernels.emit.isa import AVX2
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.kernel_call import address, call, floats, guarded

HEADS, HEAD_DIM, SCALE = 3, 16, 0.25
WIDTH = 3 * HEADS * HEAD_DIM
COLUMNS = HEADS * HEAD_DIM


def _attend(library: Library, qkv: np.ndarray, lengths: Sequence[int], portion: int = 10**6) -> np.ndarray:
    """The kernel's answer, units taken from the last portion to the first; nothing else may be written."""
    isa, out = library.isa, guarded(len(qkv) + 1, COLUMNS, COLUMNS + 4)
    blocks = text_blocks(tuple(lengths), isa).copy()
    alone = qkv_args(qkv.ctypes.data, WIDTH, out.ctypes.data, COLUMNS + 4, HEADS, HEAD_DIM, SCALE)
    args = TextsArgs(alone, blocks.ctypes.data)
    kernel = address(library, texts_name(HEAD_DIM), texts_ir, HEAD_DIM)
    n = units(HEADS, lengths, isa)
    for first in reversed(range(0, n, portion)):
        stop = min(first + portion, n)
        call(kernel, args, stop, scratch_bytes(HEAD_DIM, max(lengths), isa), first=first)
    assert (out[len(qkv) :] == 7).all()
    assert (out[:, COLUMNS:] == 7).all()
    return out[: len(qkv), :COLUMNS].copy()


def _texts(lengths: Sequence[int]) -> list[slice]:
    stops = np.cumsum(lengths).tolist()
    return [slice(stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@settings(max_examples=30)
@given(LENGTHS, st.integers(0, 1000))
def test_texts_are_what_each_is_in_float64(library: Library, lengths: list[int], seed: int) -> None:
    """Rows of one text never see those of another; the bound is that of attention of one text."""
    qkv = floats(sum(lengths), WIDTH, seed=seed, scale=1.5)
    out = _attend(library, qkv, lengths)
    for rows in _texts(lengths):
        expected = reference.attention(qkv[rows], HEADS, SCALE)
        np.testing.assert_allclose(out[rows], expected, atol=1.2e-5, rtol=0)


@pytest.mark.parametrize("portion", [1, 2, 7])
def test_neither_neighbours_nor_portions_change_a_bit(library: Library, portion: int) -> None:
    """Threads take units as they come, and a text's sums are made in one order wherever its rows stand."""
    rows = block_rows(library.isa)
    lengths = [1, 2 * rows + 3, 5, rows, rows + 1, 1]
    qkv = floats(sum(lengths), WIDTH)
    together = _attend(library, qkv, lengths, portion)
    for place in _texts(lengths):
        text = np.ascontiguousarray(qkv[place])
        assert (together[place] == _attend(library, text, [len(text)])).all()


def test_a_nan_stays_in_its_text(library: Library) -> None:
    """One text that overflows must not spoil the answers of the others."""
    qkv = floats(40, WIDTH)
    qkv[20] = np.nan
    out = _attend(library, qkv, [18, 4, 18])
    assert np.isnan(out[18:22]).all()
    assert np.isfinite(out[:18]).all()
    assert np.isfinite(out[22:]).all()


def test_threads_end_a_batch_at_about_the_same_time() -> None:
    """The largest portion is an eighth of a thread's share: two threads differ by no more than that."""
    lengths = tuple(range(4, 65))
    assert grain(12, lengths, AVX2, 2) * 16 <= units(12, lengths, AVX2)
    assert grain(12, (4, 4), AVX2, 16) == 1
