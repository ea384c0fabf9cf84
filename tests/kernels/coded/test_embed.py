"""Embedding sums: every table format, and codes that decode to exactly their codebook's values."""

import numpy as np
import pytest

from pliant.kernels.coded.embed import EmbedArgs, EmbedFormat, EmbedFormats, embed_ir, embed_name
from pliant.kernels.runtime.jit import Library
from pliant.models.word_table import QuantizedTable, pack_codes
from tests.kernels import reference
from tests.kernels.kernel_call import address, call, floats, guarded

WORDS, POSITIONS, TYPES = 50, 12, 2


class _Table:
    """A random table in one format: what the kernel reads, and what it means."""

    def __init__(self, form: EmbedFormat, rows: int, columns: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.codebook = floats(64, seed=seed)
        exact = floats(rows, columns, seed=seed)
        match form:
            case "codes":
                codes = random.integers(0, 64, (rows, columns)).astype(np.uint8)
                table = QuantizedTable(pack_codes(codes), self.codebook, columns)
                self.stored, self.values = np.ascontiguousarray(table.codes), table.decode_all()
            case "F32":
                self.stored, self.values = exact, exact
            case "F16":
                self.stored = exact.astype(np.float16)
                self.values = self.stored.astype(np.float32)
            case "BF16":
                self.stored = (exact.view(np.uint32) >> 16).astype(np.uint16)
                self.values = (self.stored.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    "formats",
    [
        EmbedFormats("codes", "codes", "F16"),
        EmbedFormats("F32", "F32", "F32"),
        EmbedFormats("F16", "F16", None),
        EmbedFormats("codes", "BF16", "codes"),
    ],
    ids=embed_name,
)
@pytest.mark.parametrize("columns", [1, 8, 13, 64, 100])
@pytest.mark.parametrize("tokens", [1, 10])
def test_embeddings_are_the_sum_of_their_rows(
    library: Library, formats: EmbedFormats, columns: int, tokens: int
) -> None:
    """Two float32 additions of exact values: one unit in the last place each, 1.2e-7 of the largest."""
    random, first = np.random.default_rng(columns), 2
    ids = random.integers(0, WORDS, tokens).astype(np.int32)
    types = random.integers(0, TYPES, tokens).astype(np.int32)
    word = _Table(formats.word, WORDS, columns, 1)
    position = _Table(formats.position, POSITIONS, columns, 2)
    kind = _Table(formats.type, TYPES, columns, 3) if formats.type else None
    n_padded = -(-columns // 32) * 32
    out = guarded(tokens, n_padded, n_padded + 4)
    args = EmbedArgs(
        *(ids.ctypes.data, types.ctypes.data),
        *(word.stored.ctypes.data, word.codebook.ctypes.data),
        *(position.stored.ctypes.data, position.codebook.ctypes.data),
        *((kind.stored.ctypes.data, kind.codebook.ctypes.data) if kind else (None, None)),
        *(first, out.ctypes.data, n_padded + 4, columns, n_padded),
    )
    call(address(library, embed_name(formats), embed_ir, formats), args, tokens)
    expected = reference.embed(
        ids, word.values, position.values, first, types if kind else None, kind.values if kind else None
    )
    np.testing.assert_allclose(out[:, :columns], expected, rtol=2e-7, atol=1e-6)
    assert (out[:, columns:n_padded] == 0).all()
    assert (out[:, n_padded:] == 7).all()


def test_every_code_reads_its_own_entry(library: Library) -> None:
    """All 64 codes in one row, decoded bit for bit: plane order and bit order are part of the format."""
    formats = EmbedFormats("codes", "F32", None)
    codes = np.arange(64, dtype=np.uint8)[None]
    table = np.ascontiguousarray(pack_codes(codes))
    codebook, zeros, out = floats(64), np.zeros((1, 64), np.float32), np.empty((1, 64), np.float32)
    ids = np.zeros(1, np.int32)
    args = EmbedArgs(
        ids=ids.ctypes.data,
        word=table.ctypes.data,
        word_codebook=codebook.ctypes.data,
        position=zeros.ctypes.data,
        out=out.ctypes.data,
        ld_out=64,
        n=64,
        n_padded=64,
    )
    call(address(library, embed_name(formats), embed_ir, formats), args, 1)
    assert (out[0] == codebook).all()
