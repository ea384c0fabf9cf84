"""Running sums, Fourier transforms and determinants through a session, against numpy."""

import numpy as np
import pytest

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.move.test_lower_move import check, numbers
from tests.compiler.rules.run_node import run_node, type_of

HOST = to_portable(AVX2)
EVERY_ISA = pytest.mark.parametrize(
    "isa", [to_portable(isa) for isa in (AVX512, AVX2, X86_64)], ids=lambda isa: isa.name
)


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float64"])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_sums_and_products(op: str, dtype: str, isa: Isa) -> None:
    """From either end, with and without the element itself, along every axis; integers wrap."""
    x = (np.arange(60).reshape(3, 4, 5) % 7 + 1).astype(dtype)
    for axis in (0, 1, -1):
        for attributes in ({}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}):
            check(op, [x, np.array(axis)], attributes, constants=(1,), isa=isa)


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_running_sums_of_neighbouring_columns(dtype: str, isa: Isa) -> None:
    """Several units wide: vectors in chains, alone, and single columns, each summed in its own order."""
    x = np.random.default_rng(0).integers(0, 50, (2, 5, 64 + 32 + 8 + 3)).astype(dtype)
    for attributes in ({}, {"reverse": 1, "exclusive": 1}):
        check("CumSum", [x, np.array(1)], attributes, constants=(1,), isa=isa)


def test_half_floats_are_summed_in_float32() -> None:
    """2048 ones: float16 alone would stay at 2048 from there on, and lose halves before."""
    x = np.full(3000, 0.5, np.float16)
    (y,) = run_node("CumSum", [x, np.array(0)], types=[type_of(x)], isa=HOST, constants=(1,))
    np.testing.assert_array_equal(y, (np.arange(1, 3001) * 0.5).astype(np.float16))


def _pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], axis=-1)


@EVERY_ISA
@pytest.mark.parametrize("n", [1, 2, 9, 16])
@pytest.mark.parametrize("length", [None, 5, 12])
def test_transforms_match_numpy(n: int, length: int | None, isa: Isa) -> None:
    """Complex and real, there and back, cut short or padded; sums are float64, results float64 here."""
    z = np.random.default_rng(n).standard_normal((2, n, 3, 2))
    signal, given = z[..., 0] + 1j * z[..., 1], None if length is None else np.array(length)
    constants = (1, 2) if length else (2,)
    cases = [
        (z, {}, _pairs(np.fft.fft(signal, length, axis=1))),
        (z, {"inverse": 1}, _pairs(np.fft.ifft(signal, length, axis=1))),
        (z[..., :1], {"onesided": 1}, _pairs(np.fft.rfft(z[..., 0], length, axis=1))),
    ]
    for x, attributes, wanted in cases:
        types = [TensorType("float64", wanted.shape)]
        inputs = [np.ascontiguousarray(x), given, np.array(1)]
        (y,) = run_node("DFT", inputs, attributes, types=types, isa=isa, constants=constants)
        np.testing.assert_allclose(y, wanted, atol=1e-12)


@pytest.mark.parametrize("length", [8, 9])
def test_half_a_spectrum_goes_back_to_a_real_signal(length: int) -> None:
    """Its other half is the conjugate; the middle of an even length has none."""
    x = np.random.default_rng(0).standard_normal((2, length))
    spectrum = _pairs(np.fft.rfft(x))
    inputs = [spectrum, np.array(length), np.array(1)]
    types = [TensorType("float64", (2, length, 1))]
    attributes = {"inverse": 1, "onesided": 1}
    (y,) = run_node("DFT", inputs, attributes, types=types, isa=HOST, constants=(1, 2))
    np.testing.assert_allclose(y[..., 0], x, atol=1e-12)


def test_short_time_transforms_cut_and_weigh_frames() -> None:
    """Each frame times the window, transformed by itself."""
    x, window = numbers(2, 50, 1), np.hanning(16).astype(np.float32)
    frames = np.stack([x[:, i : i + 16, 0] for i in range(0, 35, 5)], axis=1)
    wanted = _pairs(np.fft.rfft(frames * window.astype(np.float64)))
    types = [TensorType("float32", wanted.shape)]
    inputs = [x, np.array(5), window, np.array(16)]
    (y,) = run_node("STFT", inputs, types=types, isa=HOST, constants=(1, 3))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)
    with pytest.raises(GraphError, match="too short"):
        run_node("STFT", [x[:, :40], *inputs[1:]], types=types, isa=HOST, constants=(1, 3))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_determinants(n: int) -> None:
    """With a zero where the first pivot would stand, and of a singular matrix: 0, not NaN."""
    x = np.random.default_rng(n).standard_normal((3, n, n))
    if n:
        x[0, 0, 0] = 0
        x[1, -1] = 0
    (y,) = run_node("Det", [x], types=[TensorType("float64", (3,))], isa=HOST)
    np.testing.assert_allclose(y, np.linalg.det(x), atol=1e-12)


def test_bits_are_read_as_another_type() -> None:
    """No element is touched: a NaN's payload survives."""
    x = np.array([0x7FC12345, 1], np.uint32)
    (y,) = run_node("BitCast", [x], {"to": 1}, types=[TensorType("float32", (2,))], isa=HOST)
    np.testing.assert_array_equal(y.view(np.uint32), x)
