"""Quantization and integer products through the compiler, against onnx's reference and numpy."""

from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, NEON_DOT, NEON_I8MM, Isa, to_portable
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.model_options import ModelOptions
from tests.compiler.family_models import MODELS, feeds_of, model_of
from tests.compiler.rules.run_node import expected, machine, run_node
from tests.rows import BYTE_ROWS, byte_row_name

ARM_ROWS = [NEON_DOT, NEON_I8MM]
"""Signed bytes on the left, four products at a time or two rows at once."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def integers(*shape: int, dtype: str, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_quantized_and_back_is_onnxs(dtype: str, cache: Path) -> None:
    """By axis, with values that saturate and ties that round to even."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32) * 300
    x[0, 0] = [0.5, 1.5, 2.5, 1e6, -1e6]
    scale, zero = np.array([1.0, 0.1, 0.01], np.float32), np.array([0, 3, 100], dtype)
    types = [TensorType(dtype, x.shape)]
    (q,) = run_node("QuantizeLinear", [x, scale, zero], {"axis": 1}, types=types, isa=AVX2, cache=cache)
    np.testing.assert_array_equal(q, expected("QuantizeLinear", [x, scale, zero], {"axis": 1})[0])
    types = [TensorType("float32", x.shape)]
    (y,) = run_node("DequantizeLinear", [q, scale, zero], {"axis": 1}, types=types, isa=AVX2, cache=cache)
    np.testing.assert_allclose(y, expected("DequantizeLinear", [q, scale, zero], {"axis": 1})[0], rtol=1e-6)


@pytest.mark.parametrize("isa", BYTE_ROWS, ids=byte_row_name)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_long_rows_saturate_in_whole_vectors_as_in_their_rest(isa: Isa, dtype: str, cache: Path) -> None:
    """Several vectors at a time, one, and a partial one: limits, infinities and ties everywhere; NaN is 0."""
    x = np.random.default_rng(0).standard_normal(64 + 16 + 7).astype(np.float32) * 60000
    x[::11] = np.arange(-4, 4) + 0.5
    x[1], x[70], x[85] = np.inf, -np.inf, 3e9
    limits, zero = np.iinfo(dtype), np.array(3, dtype)
    scale = np.array(0.5, np.float32)
    want = np.clip(np.rint(x / scale) + 3, limits.min, limits.max).astype(dtype)
    x[[5, 68, 86]], want[[5, 68, 86]] = np.nan, 0
    types = [TensorType(dtype, x.shape)]
    (q,) = run_node("QuantizeLinear", [x, scale, zero], types=types, isa=isa, cache=cache)
    np.testing.assert_array_equal(q, want)


def test_blocks_have_scales_of_their_own(cache: Path) -> None:
    """Along one axis, so many elements share a scale."""
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32) * 30
    scale = np.abs(np.random.default_rng(1).standard_normal((4, 2))).astype(np.float32)
    zero = integers(4, 2, dtype="uint8")
    attributes = {"axis": 1, "block_size": 3}
    types = [TensorType("uint8", x.shape)]
    (q,) = run_node("QuantizeLinear", [x, scale, zero], attributes, types=types, isa=AVX2, cache=cache)
    np.testing.assert_array_equal(q, expected("QuantizeLinear", [x, scale, zero], attributes)[0])


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_dynamic_quantization_is_onnxs(spread: float, cache: Path) -> None:
    """A tensor of zeros has scale 1, as in onnxruntime."""
    x = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32) * spread + spread
    types = [TensorType("uint8", x.shape), TensorType("float32", ()), TensorType("uint8", ())]
    q, scale, zero = run_node("DynamicQuantizeLinear", [x], types=types, isa=AVX2, cache=cache)
    least, most = min(x.min(), 0), max(x.max(), 0)
    step = np.float32((most - least) / 255) or np.float32(1)
    assert scale == pytest.approx(step, rel=1e-6)
    assert zero == np.clip(np.round(-least / step), 0, 255)
    assert np.abs(q - np.clip(np.round(x / scale) + zero, 0, 255)).max() <= 0


@pytest.mark.parametrize("isa", [*BYTE_ROWS, *map(to_portable, ARM_ROWS)], ids=byte_row_name)
@pytest.mark.parametrize("weights", ["runtime", "bytes", "words"])
@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_integer_products_are_exact(isa: Isa, weights: str, left: str, right: str, cache: Path) -> None:
    """Full range of both: no sum on the way may saturate. Shapes with tails in all directions.

    Zero points as onnxruntime chooses them, and one whose differences from weights need nine bits.
    """
    shapes = (((2, 13, 70), 50), ((150, 64), 32), ((3, 7), 5), ((1, 800), 17), ((2, 1), 16))
    for shape, columns in shapes:
        a, b = integers(*shape, dtype=left), integers(shape[-1], columns, dtype=right, seed=1)
        a_zero, b_zero = integers(dtype=left, seed=2), integers(columns, dtype=right, seed=3)
        if weights == "bytes":
            b_zero = np.full(columns, 128 if right == "uint8" else 0, right)
        (y,) = run_node(
            "MatMulInteger",
            [a, b, np.asarray(a_zero), b_zero],
            types=[TensorType("int32", (*shape[:-1], columns))],
            isa=isa,
            constants=[] if weights == "runtime" else [1, 3],
            cache=cache,
        )
        wide = [x.astype(np.int64) for x in (a, a_zero, b, b_zero)]
        np.testing.assert_array_equal(y, (wide[0] - wide[1]) @ (wide[2] - wide[3]))


def test_qlinear_matmul_is_onnxs(cache: Path) -> None:
    """Row scales on the left, column scales on the right."""
    a, b = integers(2, 4, 6, dtype="uint8"), integers(6, 5, dtype="int8", seed=1)
    scales = [np.float32(0.02), np.linspace(0.01, 0.03, 5).astype(np.float32), np.float32(0.1)]
    zeros = [np.uint8(120), np.zeros(5, np.int8), np.uint8(130)]
    inputs = [
        *(a, np.asarray(scales[0]), np.asarray(zeros[0]), b, scales[1], zeros[1]),
        *(np.asarray(scales[2]), np.asarray(zeros[2])),
    ]
    (y,) = run_node("QLinearMatMul", inputs, types=[TensorType("uint8", (2, 4, 5))], isa=AVX2, cache=cache)
    sums = (a.astype(int) - 120) @ b.astype(int)
    wanted = np.clip(np.round(sums * (scales[0] * scales[1] / scales[2])) + 130, 0, 255)
    assert np.abs(y - wanted).max() <= 1  # a tie may fall to either side in float32
    assert (y == wanted).mean() > 0.9


@pytest.mark.parametrize("isa", BYTE_ROWS, ids=byte_row_name)
def test_dynamic_products_of_bytes_are_those_of_int16(isa: Isa, cache: Path) -> None:
    """Rows quantized to bytes for the CPUs that multiply them give the same sums; only scales are floats."""
    names = [name for name in MODELS if name.endswith("int8_dynamic")]
    results = []
    for row in (AVX2, isa):
        library, pool = machine(row, cache)
        found = []
        for name in names:
            feeds = feeds_of(name)
            model = OnnxSession(model_of(name), pool, library, ModelOptions({}), ahead=False)
            found.append(open_image(make_image(model.graph(feeds), Target(row, 2)), pool, library).run(feeds))
        results.append(found)
    for right, result in zip(*results, strict=True):
        np.testing.assert_allclose(result["y"], right["y"], rtol=1e-5, atol=1e-5)
