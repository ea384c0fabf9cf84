"""The GEMM on resident bytes: its integers are exact, whatever columns' steps are, on every ISA."""

import numpy as np
import pytest

from pliant.kernels.coded.gemm import ACTIVATIONS
from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.int8.gemm_int8 import (
    GemmInt8Args,
    gemm_bytes_ir,
    padded_int8,
    resident_shape,
    scratch_bytes_int8,
    units_int8,
)
from pliant.kernels.coded.int8.round_rows import RoundRowsArgs, round_rows_ir, round_rows_name
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.coded.int8_form import Int8Form, resident_form
from pliant.kernels.emit.isa import ISAS, Isa
from pliant.kernels.product.matmul_integer import pack
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.kernel_call import address, call, floats, guarded
from tests.rows import INTEGER_ROWS, integer_name, isa_fixtures

isa, library = isa_fixtures(INTEGER_ROWS)

ROUNDED_ONCE = {"rtol": 4 * 2.0**-24, "atol": 0.0}
"""Whole sums below 2**24 are exact in float32; a product with steps of powers of two as well."""


def draw(isa: Isa, rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signed integers of A, B in steps, and rows' zero points, over all that the form allows."""
    form, rng = resident_form(isa), np.random.default_rng(0)
    b = rng.integers(-form.weight, form.weight + 1, (depth, columns))
    if not form.is_bytes:
        return rng.integers(-form.activation, form.activation + 1, (rows, depth)), b, np.zeros(rows, np.int64)
    levels = 2 * form.activation + 1
    zeros = form.lowest + np.linspace(0, levels, rows).astype(np.int64)
    return rng.integers(form.lowest, form.lowest + levels + 1, (rows, depth)) - zeros[:, None], b, zeros


def height_of(isa: Isa, rows: int) -> int:
    """Rows that stand together: those of a vector tile, or one where tile registers hold the sums."""
    return 1 if isa.has_tiles and rows > 8 else tile_shape(isa).rows


def stored(isa: Isa, whole: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Rows as the kernel reads them, padded with their zero point."""
    form, height = resident_form(isa), height_of(isa, len(whole))
    padded = np.pad(whole, ((0, 0), (0, padded_int8(whole.shape[1]) - whole.shape[1])))
    moved = (padded + zeros[:, None]).astype(_element(form))
    blocks = [moved[i : i + height] for i in range(0, len(moved), height)]
    packed = [b.reshape(len(b), -1, form.packing).transpose(1, 0, 2).reshape(-1) for b in blocks]
    return np.concatenate(packed)


def _element(form: Int8Form) -> type:
    return np.int16 if not form.is_bytes else np.uint8 if form.lowest == 0 else np.int8


def product(
    library: Library,
    whole: np.ndarray,
    b: np.ndarray,
    zeros: np.ndarray,
    scales: np.ndarray,
    steps: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    activation: int = 0,
) -> np.ndarray:
    """The GEMM of signed integers, by the kernel, which may not write past its columns."""
    isa, (rows, depth), columns = library.isa, whole.shape, b.shape[1]
    shape = resident_shape(depth, columns, isa)
    panels = aligned_bytes(int(np.prod(shape))).view(np.int8).reshape(shape)
    pack(b.astype(np.int8), panels)
    wide = units_int8(columns) * 16
    sums, worth = np.zeros(wide, np.int32), np.zeros(wide, np.float32)
    sums[:columns], worth[:columns] = b.sum(0), steps
    q, c = stored(isa, whole, zeros), guarded(rows, columns, columns + 3)
    pairs = np.stack([scales.astype(np.float32), zeros.astype(np.int32).view(np.float32)], 1)
    gemm = GemmArgs(
        a=q.ctypes.data, c=c.ctypes.data, ldc=columns + 3, n_rows=rows, n_columns=columns,
        segment_rows=padded_int8(depth), n_segments=1, activation=activation,
        bias=None if bias is None else bias.ctypes.data,
        residual=None if residual is None else residual.ctypes.data, ldr=columns,
    )  # fmt: skip
    gemm.own.full = panels.ctypes.data
    args = GemmInt8Args(gemm, pairs.ctypes.data, worth.ctypes.data, sums.ctypes.data)
    call(address(library, "gemm_bytes", gemm_bytes_ir), args, units_int8(columns), scratch_bytes_int8(0, isa))
    assert (c[:, columns:] == 7.0).all(), "the kernel wrote past its columns"
    return c[:, :columns]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 8, 9, 13, 25, 260])
def test_integers_are_exact(library: Library, rows: int) -> None:
    """Every height of tile, each row with a zero point and each column with a step of its own."""
    whole, b, zeros = draw(library.isa, rows, 96, 112)
    scales = 2.0 ** (np.arange(rows) % 5 - 2)
    steps = 2.0 ** (np.arange(112) % 7 - 3)
    c = product(library, whole, b, zeros, scales, steps)
    np.testing.assert_allclose(c, (whole @ b) * scales[:, None] * steps, **ROUNDED_ONCE)


@pytest.mark.parametrize("columns", [16, 17, 40, 64, 100])
@pytest.mark.parametrize("name", [None, "gelu", "tanh"])
def test_the_last_columns_and_what_follows(library: Library, name: str | None, columns: int) -> None:
    """Bias, residual and activation, where columns are no whole groups and K is no whole turn."""
    whole, b, zeros = draw(library.isa, 10, 50, columns)
    scales, steps = floats(10, seed=1) ** 2 * 1e-3, floats(columns, seed=2) ** 2 * 1e-2
    bias, residual = floats(columns, seed=3), floats(10, columns, seed=4)
    added = None if name else residual
    c = product(library, whole, b, zeros, scales, steps, bias, added, ACTIVATIONS[name])
    sums = (whole @ b) * scales[:, None].astype(np.float64) * steps
    np.testing.assert_allclose(c, reference.gemm(np.eye(10), sums, bias, name, added), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_do_not_saturate(library: Library, sign: int) -> None:
    """Every product at its largest, of one sign: pairs in 16 bits, and 4096 rows in 32."""
    form = resident_form(library.isa)
    top = 2 * form.activation + 1 if form.is_bytes else form.activation
    zeros = np.full(3, form.lowest if form.is_bytes else 0)
    whole, b = np.full((3, 4096), top), np.full((4096, 32), sign * form.weight)
    c = product(library, whole, b, zeros, np.ones(3), np.ones(32))
    np.testing.assert_allclose(c, whole @ b, **ROUNDED_ONCE)


@pytest.mark.parametrize("isa", ISAS, ids=integer_name)
def test_no_sum_can_saturate(isa: Isa) -> None:
    """The form's own limits, of every row, those of other architectures too."""
    form = resident_form(isa)
    largest = 2 * form.activation + 1 if form.is_bytes and form.lowest == 0 else form.activation
    if form.is_bytes and not isa.has_dot:
        assert form.words_per_widening == 1
        assert 2 * largest * form.weight < 2**15
    if form.is_bytes:
        assert largest < 2**8
    assert form.weight < 2**7
    assert 8192 * largest * form.weight < 2**31


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_are_rounded_to_the_form_s_steps(library: Library, rows: int) -> None:
    """Each value is the nearest step of its row, and padding is zero."""
    isa, a = library.isa, floats(rows, 61) * np.float32(10.0) ** np.arange(rows, dtype=np.float32)[:, None]
    form, depth = resident_form(isa), 64
    q, scales = np.zeros(rows * depth * 4 // form.packing, np.uint8), np.zeros((rows, 2), np.float32)
    args = RoundRowsArgs(a.ctypes.data, 61, rows, 61, q.ctypes.data, depth, scales.ctypes.data)
    name = round_rows_name(True, isa)
    kernel = library.load_function(name, lambda: round_rows_ir(isa, is_resident=True))
    call(kernel, args, rows)
    zeros = np.ascontiguousarray(scales[:, 1]).view(np.int32).astype(np.int64)
    flat, height, whole = q.view(_element(form)), height_of(isa, rows), np.zeros((rows, depth), np.int64)
    for i in range(0, rows, height):
        n = min(height, rows - i)
        block = flat[i * depth : (i + n) * depth].reshape(-1, n, form.packing)
        whole[i : i + n] = block.transpose(1, 0, 2).reshape(n, depth)
    whole -= zeros[:, None]
    low, high = np.minimum(a.min(1), 0), np.maximum(a.max(1), 0)
    levels = 2 * form.activation + 1 if form.is_bytes else form.activation
    expected = (high - low if form.is_bytes else np.maximum(high, -low)) / levels
    np.testing.assert_allclose(scales[:, 0], expected, rtol=1e-6)
    # At one end a value may be clipped by the half step that both ends were rounded outwards.
    assert (np.abs(whole[:, :61] * scales[:, :1] - a) <= scales[:, :1] * 1.001).all()
    assert (np.abs(whole[:, :61] * scales[:, :1] - a) > scales[:, :1] * 0.501).sum() <= rows
    assert not whole[:, 61:].any()
