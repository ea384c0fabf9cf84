"""Attention's products through AMX against float64: lengths, widths, masks, NaN, and the code."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.kernels.attention.attention import attention_ir, scratch_bytes
from pliant.kernels.emit.isa import AVX512_AMX, Isa, is_runnable
from pliant.kernels.runtime.compile_child import compile_assembly
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.attention.test_attention import MASKS, attend, check_masked
from tests.kernels.kernel_call import floats
from tests.kernels.spills import inner_loops, spills
from tests.kernels.tiles.amx_trap import Executed, Trap
from tests.rows import TILE_ROWS, isa_fixtures

isa, library = isa_fixtures(TILE_ROWS)

# A score errs by 2**-16 of its terms at most, and by a few 1e-6 of its size; weights by as much as it.
TOLERANCE = 1e-4


@pytest.mark.parametrize("tokens", [8, 9, 15, 16, 17, 31, 32, 33, 49, 130])
@pytest.mark.parametrize("head_dim", [32, 48])
def test_every_length(library: Library, head_dim: int, tokens: int) -> None:
    """Lengths around tiles, blocks of rows, and where vectors multiply instead."""
    qkv = floats(tokens, 2 * 3 * head_dim, seed=tokens, scale=1.5)
    made, expected = attend(library, qkv, 2, head_dim**-0.5), reference.attention(qkv, 2, head_dim**-0.5)
    np.testing.assert_allclose(made, expected, atol=TOLERANCE, rtol=0)
    error = np.sqrt(((made - expected) ** 2).mean() / (expected**2).mean())
    assert error < 1.5e-5, "what two products of 3e-6 each make of scores up to 20"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("keys", "key_dim", "value_dim"), [(33, 20, 7), (50, 16, 32), (5, 3, 16)])
def test_masks_and_shapes(
    library: Library, mask: str, is_causal: bool, keys: int, key_dim: int, value_dim: int
) -> None:
    """Fewer keys than queries, heads of any width, later keys hidden: as in vectors."""
    check_masked(library, mask, is_causal, keys, key_dim, value_dim, TOLERANCE)


@pytest.mark.parametrize(("part", "value"), [(0, np.inf), (0, np.nan), (1, np.nan), (2, np.nan)])
def test_what_is_not_finite_stays_where_it_belongs(library: Library, part: int, value: float) -> None:
    """A query spoils its row, a key every row, a value its column; of its head only."""
    qkv = floats(30, 2, 3, 16)
    qkv[11, 1, part, 3] = value
    out = attend(library, qkv.reshape(30, -1), 2, 0.25).reshape(30, 2, 16)
    spoilt = np.zeros((30, 16), bool)
    spoilt[(11, slice(None), (slice(None), 3))[part] if part != 2 else (slice(None), 3)] = True
    np.testing.assert_array_equal(np.isnan(out[:, 1]), spoilt)
    assert np.isfinite(out[:, 0]).all()


@pytest.mark.skipif(is_runnable(AVX512_AMX), reason="this CPU counts no instructions")
@pytest.mark.skipif(AVX512_AMX not in TILE_ROWS, reason="AMX cannot be had here, not even by a handler")
def test_tiles_make_both_products(library_of: Callable[[Isa], Library], kernel_cache: Path) -> None:
    """32 queries, 32 keys, heads of 32: three products of four tiles each for scores, and for outputs."""
    trap = Trap(kernel_cache)
    before = trap.count(Executed.BFLOATS), trap.count(Executed.RELEASED)
    attend(library_of(AVX512_AMX), floats(32, 3 * 32), 1, 32**-0.5)
    assert trap.count(Executed.BFLOATS) - before[0] == 2 * 3 * 4
    assert trap.count(Executed.RELEASED) - before[1] == 1
    assert not trap.is_configured


def test_its_code_keeps_vectors_in_registers() -> None:
    """No inner loop has vectors on the stack, and no tile is there at all."""
    (made,) = compile_assembly(
        [attention_ir(AVX512_AMX, 32)], AVX512_AMX.cpu, AVX512_AMX.features, AVX512_AMX.triple
    )
    assert not any(spills(loop, AVX512_AMX) for loop in inner_loops(made))
    tiles = [line for line in made.splitlines() if re.search(r"\ttile(load|store)", line)]
    assert tiles
    assert not any("%rsp" in line for line in tiles)


def test_scratch_grows_with_the_length_and_no_faster() -> None:
    """No whole matrix of scores is kept."""
    assert scratch_bytes(64, 1024, AVX512_AMX) <= 2 * scratch_bytes(64, 512, AVX512_AMX)
