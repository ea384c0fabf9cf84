"""Fused attention against the float64 oracle: every tail, strides, special values, and its own bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.kernels.attention.attention import (
    AttentionArgs,
    attention_ir,
    attention_name,
    block_rows,
    blocks,
    grain,
    qkv_args,
    scratch_bytes,
    units,
)
from pliant.kernels.emit.isa import AVX2
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.kernel_call import address, call, floats, guarded


def attend(library: Library, qkv: np.ndarray, n_heads: int, scale: float) -> np.ndarray:
    """The kernel's answer; its surroundings must stay as they were."""
    tokens, width = qkv.shape
    head_dim = width // (3 * n_heads)
    strided = guarded(tokens, width, width + 8)
    strided[:, :width] = qkv
    columns = n_heads * head_dim
    out = guarded(tokens + 1, columns, columns + 4)
    args = qkv_args(strided.ctypes.data, width + 8, out.ctypes.data, columns + 4, n_heads, head_dim, scale)
    args.n_rows = args.n_tokens = tokens
    call(
        address(library, attention_name(head_dim), attention_ir, head_dim),
        args,
        units(n_heads, tokens, library.isa),
        scratch_bytes(head_dim, tokens, library.isa),
    )
    assert (out[tokens:] == 7).all()
    assert (out[:, columns:] == 7).all()
    return out[:tokens, :columns]


def _check(library: Library, qkv: np.ndarray, n_heads: int, scale: float) -> None:
    """Scores of size up to s are rounded by 1e-7 s times a few terms, which is the weights' relative error.

    With |score| <= 20 and outputs of size |v| <= 6 that is below 2e-6 * 6.
    """
    expected = reference.attention(qkv, n_heads, scale)
    np.testing.assert_allclose(attend(library, qkv, n_heads, scale), expected, atol=1.2e-5, rtol=0)


@pytest.mark.parametrize(
    "tokens", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 65, 128, 200]
)
def test_attention_matches_float64_at_every_length(library: Library, tokens: int) -> None:
    """Lengths around every vector width, key tile and row block."""
    _check(library, floats(tokens, 2 * 3 * 32, seed=tokens, scale=1.5), 2, 32**-0.5)


@pytest.mark.parametrize("head_dim", [8, 16, 48, 64])
@pytest.mark.parametrize("tokens", [1, 10, 70])
def test_attention_matches_float64_at_every_head_width(library: Library, head_dim: int, tokens: int) -> None:
    """32 is MiniLM's and 64 is BERT's; odd configurations are padded to multiples of 32 or 16."""
    _check(library, floats(tokens, 3 * 3 * head_dim, seed=tokens), 3, head_dim**-0.5)


def test_attention_runs_past_the_length_of_any_bert(library: Library) -> None:
    """Nothing but memory limits the length."""
    _check(library, floats(1030, 3 * 16, seed=1), 1, 0.25)


def test_padded_columns_stay_zero_and_change_nothing(library: Library) -> None:
    """A head of 20 columns in 32: the scale is that of the real width, the padding adds zeros."""
    qkv = floats(9, 2, 3, 32)
    qkv[..., 20:] = 0
    out = attend(library, qkv.reshape(9, -1), 2, 20**-0.5)
    narrow = np.ascontiguousarray(qkv[..., :20]).reshape(9, -1)
    expected = reference.attention(narrow, 2, 20**-0.5).reshape(9, 2, 20)
    np.testing.assert_allclose(out.reshape(9, 2, 32)[..., :20], expected, atol=1e-5)
    assert (out.reshape(9, 2, 32)[..., 20:] == 0).all()


def test_units_may_come_in_any_portion(library: Library) -> None:
    """Threads take units as they come: a head's keys are copied anew where another thread stopped."""
    isa, tokens, n_heads = library.isa, 2 * block_rows(library.isa) + 3, 2
    qkv = floats(tokens, n_heads * 3 * 16)
    whole = attend(library, qkv, n_heads, 0.25)
    pieces = np.full((tokens, n_heads * 16), 7, np.float32)
    args = qkv_args(qkv.ctypes.data, n_heads * 48, pieces.ctypes.data, n_heads * 16, n_heads, 16, 0.25)
    args.n_rows = args.n_tokens = tokens
    kernel = address(library, attention_name(16), attention_ir, 16)
    for unit in reversed(range(units(n_heads, tokens, isa))):
        call(kernel, args, unit + 1, scratch_bytes(16, tokens, isa), first=unit)
    assert (pieces == whole).all()


def test_large_scores_neither_overflow_nor_vanish(library: Library) -> None:
    """Scores of +-1e4: softmax is one-hot, which unshifted exponentials could not say."""
    qkv = floats(20, 3 * 16)
    qkv[:, :32] *= 100
    out = attend(library, qkv, 1, 1.0)
    scores = qkv[:, :16].astype(np.float64) @ qkv[:, 16:32].T
    ordered = np.sort(scores, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 30
    assert clear.any()
    np.testing.assert_allclose(out[clear], qkv[scores.argmax(axis=1), 32:][clear], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_query_spoils_its_row_of_its_head(library: Library, bad: float) -> None:
    """And nothing else: rows share vectors, which must not mix them."""
    qkv = floats(30, 2, 3, 16)
    qkv[11, 1, 0, 3] = bad
    out = attend(library, qkv.reshape(30, -1), 2, 0.25).reshape(30, 2, 16)
    spoilt = np.isnan(out).all(axis=2)
    assert spoilt[11, 1]
    assert spoilt.sum() == 1
    assert np.isfinite(np.delete(out, 11, axis=0)).all()


@pytest.mark.parametrize("part", [1, 2])
def test_a_nan_in_keys_or_values_reaches_every_row_of_its_head(library: Library, part: int) -> None:
    """A NaN must never be averaged away."""
    qkv = floats(30, 2, 3, 16)
    qkv[29, 0, part, 5] = np.nan
    out = attend(library, qkv.reshape(30, -1), 2, 0.25).reshape(30, 2, 16)
    spoilt = np.isnan(out[:, 0]) if part == 1 else np.isnan(out[:, 0, 5])
    assert spoilt.all()
    assert np.isfinite(out[:, 1]).all()


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(1, 3), st.integers(0, 1000))
def test_rows_of_the_output_lie_within_the_values(
    library: Library, tokens: int, n_heads: int, seed: int
) -> None:
    """Weights are a partition of one: no output exceeds the largest value of its head's column."""
    qkv = floats(tokens, n_heads, 3, 16, seed=seed, scale=3.0)
    out = attend(library, qkv.reshape(tokens, -1), n_heads, 0.25).reshape(tokens, n_heads, 16)
    slack = 1e-5
    assert (out <= qkv[:, :, 2].max(axis=0) + slack).all()
    assert (out >= qkv[:, :, 2].min(axis=0) - slack).all()


def test_scratch_holds_a_row_block_of_scores_and_no_more() -> None:
    """Doubling the length doubles the scratch: a full score matrix would quadruple it."""
    assert scratch_bytes(64, 1024, AVX2) < 2 * scratch_bytes(64, 512, AVX2)
    assert block_rows(AVX2) == 24


def test_both_threads_have_work_at_ten_tokens_and_at_512() -> None:
    """At least four portions for two threads and MiniLM's twelve heads; a narrow submodel splits by rows."""
    for tokens in (10, 512):
        n = units(12, tokens, AVX2)
        assert n // grain(12, tokens, AVX2, 2) >= 4
    assert blocks(512, AVX2) == 22
    assert grain(3, 512, AVX2, 2) == 1


def _softmax(scores: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


MASKS = {
    "none": None,
    "by key": (3, 1, 1),
    "by row": (1, 1, 33),
    "by head": (3, 4, 33),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("keys", "key_dim", "value_dim"), [(33, 20, 7), (50, 16, 32), (5, 3, 16), (70, 64, 64)]
)
def test_batches_masks_and_shapes_of_every_kind(
    library: Library, mask: str, is_causal: bool, keys: int, key_dim: int, value_dim: int
) -> None:
    """Unequal lengths, shared key heads, heads of any width, masks that depend on what they like."""
    check_masked(library, mask, is_causal, keys, key_dim, value_dim, 1e-5)


def check_masked(
    library: Library, mask: str, is_causal: bool, keys: int, key_dim: int, value_dim: int, atol: float
) -> None:
    """33 queries of three batches against float64."""
    batch, heads, group, rows = 3, 4, 2, 33
    q = floats(batch, rows, heads, key_dim)
    k = floats(batch, heads // group, keys, key_dim, seed=1)
    v = floats(batch, keys, heads // group, value_dim, seed=2)
    shape = MASKS[mask]
    added = None if shape is None else floats(*shape, keys, seed=3, scale=2.0)
    if added is not None:
        added[added < -2] = -np.inf
        added[added < -1] = np.finfo(np.float32).min
    out = np.full((batch, rows, heads, value_dim), 7, np.float32)
    shift = keys - rows if keys > rows else 0
    args = AttentionArgs(
        n_heads=heads, group=group, n_rows=rows, n_tokens=keys, is_causal=is_causal, shift=shift
    )
    args.scale, args.is_empty_zero = key_dim**-0.5, 1
    views = {
        "q": q.transpose(0, 2, 1, 3),
        "k": k,
        "v": v.transpose(0, 2, 1, 3),
        "out": out.transpose(0, 2, 1, 3),
    }
    if added is not None:
        views["mask"] = np.broadcast_to(added, (batch, heads, rows, keys))
    for name, view in views.items():
        setattr(args, name, view.ctypes.data)
        for axis, stride in zip(("batch", "head", "row"), view.strides, strict=False):
            setattr(args, f"{name}_{axis}", stride // 4)
    call(
        address(library, attention_name(key_dim, value_dim), attention_ir, key_dim, value_dim),
        args,
        units(batch * heads, rows, library.isa),
        scratch_bytes(key_dim, keys, library.isa, value_dim),
    )
    scores = views["q"].astype(np.float64) @ np.repeat(k, group, 1).transpose(0, 1, 3, 2) * key_dim**-0.5
    if added is not None:
        scores = scores + added
    if is_causal:
        scores[..., np.arange(keys)[None] > np.arange(rows)[:, None] + shift] = -np.inf
    weights = np.nan_to_num(_softmax(scores))
    expected = weights @ np.repeat(views["v"], group, 1)
    np.testing.assert_allclose(views["out"], expected, atol=atol, rtol=0)


def test_a_row_that_sees_nothing_is_nan_unless_zero_is_asked_for(library: Library) -> None:
    """Softmax of nothing is NaN; torch's exporter asks for zero."""
    qkv = floats(5, 3 * 16)
    mask = np.full(5, -np.inf, np.float32)
    out = np.zeros((5, 16), np.float32)
    args = qkv_args(qkv.ctypes.data, 48, out.ctypes.data, 16, 1, 16, 0.25)
    args.n_rows = args.n_tokens = 5
    args.mask = mask.ctypes.data
    for is_zero in (0, 1):
        args.is_empty_zero = is_zero
        kernel = address(library, attention_name(16), attention_ir, 16)
        call(kernel, args, units(1, 5, library.isa), scratch_bytes(16, 5, library.isa))
        assert (out == 0).all() if is_zero else np.isnan(out).all()
