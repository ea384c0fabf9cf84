"""Grid sampling, region pooling and columns to images through a session, against onnx's reference."""

import numpy as np
import pytest

from pliant.errors import GraphError, InputError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.move.test_lower_move import ints
from tests.compiler.rules.run_node import expected, run_node, type_of

HOST = to_portable(AVX2)
EVERY_ISA = pytest.mark.parametrize(
    "isa", [to_portable(isa) for isa in (AVX512, AVX2, X86_64)], ids=lambda isa: isa.name
)


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@EVERY_ISA
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("is_aligned", [0, 1])
def test_images_at_any_coordinates(mode: str, padding: str, is_aligned: int, isa: Isa) -> None:
    """Coordinates from -2 to 2: half of them outside. Their rounding is worth 1e-5 of a pixel."""
    x = _floats(2, 2, 5, 6)
    grid = np.random.default_rng(1).uniform(-2, 2, (2, 3, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": is_aligned}
    (wanted,) = expected("GridSample", [x, grid], attributes)
    (y,) = run_node("GridSample", [x, grid], attributes, types=[type_of(wanted)], isa=isa)
    np.testing.assert_allclose(y, wanted, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_volumes_are_sampled_too(padding: str) -> None:
    """Eight taps in three dimensions."""
    x = _floats(1, 2, 3, 4, 5)
    grid = np.random.default_rng(1).uniform(-2, 2, (1, 2, 3, 4, 3)).astype(np.float32)
    attributes = {"mode": "linear", "padding_mode": padding}
    (wanted,) = expected("GridSample", [x, grid], attributes)
    (y,) = run_node("GridSample", [x, grid], attributes, types=[type_of(wanted)], isa=HOST)
    np.testing.assert_allclose(y, wanted, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("is_aligned", [0, 1])
def test_hostile_coordinates_read_inside(mode: str, padding: str, is_aligned: int) -> None:
    """NaN, infinities and huge numbers must not become addresses; images of one pixel divide by nothing."""
    bad = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10])
    grid = np.stack(np.meshgrid(bad, bad), axis=-1)[None].astype(np.float32)
    for x in (np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 1, 1), np.float32)):
        attributes = {"mode": mode, "padding_mode": padding, "align_corners": is_aligned}
        types = [TensorType("float32", (1, 1, 6, 6))]
        (y,) = run_node("GridSample", [x, grid], attributes, types=types, isa=HOST)
        assert y.shape == (1, 1, 6, 6)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("is_aligned", [0, 1])
def test_a_point_far_outside_is_padding(mode: str, padding: str, is_aligned: int) -> None:
    """Coordinates up to the largest float32 overflowed where they met a length: the answer was NaN."""
    far = np.float32([np.inf, -np.inf, 3e38, -3e38, 1e10])
    grid = np.stack(np.meshgrid(far, far), axis=-1)[None].astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": is_aligned}
    x, types = np.ones((1, 1, 4, 4), np.float32), [TensorType("float32", (1, 1, 5, 5))]
    (y,) = run_node("GridSample", [x, grid], attributes, types=types, isa=HOST)
    np.testing.assert_allclose(y, 0.0 if padding == "zeros" else 1.0, atol=1e-6)


@EVERY_ISA
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 2])
def test_regions_are_pooled(mode: str, coordinates: str, samples: int, isa: Isa) -> None:
    """Regions inside, across the border, and turned inside out."""
    x = _floats(2, 3, 10, 12)
    boxes = np.float32([[0, 0, 9, 9], [-3, 2, 5, 14], [4, 4, 4.5, 4.2]])
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": samples,
        "spatial_scale": 0.9,
    }
    inputs = [x, boxes, np.array([0, 1, 1])]
    (wanted,) = expected("RoiAlign", inputs, attributes)
    (y,) = run_node("RoiAlign", inputs, attributes, types=[type_of(wanted)], isa=isa)
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_hostile_regions_end() -> None:
    """Corners that are no numbers, or as far apart as floats go; an image that does not exist is an error."""
    boxes = np.float32([[np.nan, 0, 9, 9], [-3e38, -3e38, 3e38, 3e38], [np.inf, 0, -np.inf, 1]])
    attributes = {"output_height": 1, "output_width": 1, "sampling_ratio": 0}
    x, types = _floats(1, 1, 4, 4), [TensorType("float32", (3, 1, 1, 1))]
    run_node("RoiAlign", [x, boxes, np.zeros(3, np.int64)], attributes, types=types, isa=HOST)
    for image in (7, -(2**63), 2**62):
        with pytest.raises(InputError, match=f"index {image}"):
            run_node("RoiAlign", [x, boxes, np.array([0, image, 0])], attributes, types=types, isa=HOST)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_columns_become_images(dtype: str) -> None:
    """Overlapping blocks are summed; strides, dilations and padding."""
    x = (_floats(2, 3 * 4, 12) * 10).astype(dtype)
    attributes = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 1, 1]}
    inputs = [x, ints(5, 5), ints(2, 2)]
    (wanted,) = expected("Col2Im", inputs, attributes)
    types = [TensorType(dtype, wanted.shape)]
    (y,) = run_node("Col2Im", inputs, attributes, types=types, isa=HOST, constants=(1, 2))
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-5)


def test_other_precisions_are_refused() -> None:
    """By name, before anything runs."""
    x = np.zeros((1, 1, 2, 2))
    with pytest.raises(GraphError, match="kernels exist for float32"):
        run_node(
            "GridSample", [x, np.zeros((1, 1, 1, 2))], types=[TensorType("float64", (1, 1, 1, 1))], isa=HOST
        )
