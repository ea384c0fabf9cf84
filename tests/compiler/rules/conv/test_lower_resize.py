"""Resize through a session: every filter and coordinate rule against onnx's reference implementation."""

import itertools
from typing import Any

import numpy as np
import pytest

from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.move.test_lower_move import ints, numbers
from tests.compiler.rules.run_node import answer_of_onnxruntime, expected, run_node, type_of

HOST = to_portable(AVX2)
EVERY_ISA = pytest.mark.parametrize(
    "isa", [to_portable(isa) for isa in (AVX512, AVX2, X86_64)], ids=lambda isa: isa.name
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def _check(x: np.ndarray, scales: tuple[float, ...], attributes: dict[str, Any], isa: Isa = HOST) -> None:
    """Weights are rounded once to float32, at most 16 of them are summed at values of up to 200."""
    inputs = [x, None, np.float32(scales)]
    full = {
        "cubic_coeff_a": -0.75,
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
        **attributes,
    }
    (wanted,) = expected("Resize", inputs, full)
    (y,) = run_node("Resize", inputs, attributes, types=[type_of(wanted)], isa=isa, constants=(2,))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)


@EVERY_ISA
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_filters_on_every_instruction_set(mode: str, isa: Isa) -> None:
    """The last axis goes element by element, the others in vectors with a rest."""
    _check(numbers(1, 2, 7, 9), (1, 1, 2, 1.7), {"mode": mode}, isa)
    _check(numbers(1, 2, 21, 19), (1, 1, 0.6, 0.4), {"mode": mode}, isa)


@pytest.mark.parametrize(("mode", "coordinates"), list(itertools.product(["linear", "cubic"], COORDINATES)))
def test_every_coordinate_rule(mode: str, coordinates: str) -> None:
    """Up and down, to a length of one too: of pytorch_half_pixel, ONNX's reference takes -0.5 there."""
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    least = 0.25 if coordinates == "pytorch_half_pixel" else 0.125
    for scales in ((2.5, 1.5), (0.5, 0.3), (least, 1.0)):
        _check(numbers(8, 11), scales, attributes)


@EVERY_ISA
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_channels_last(mode: str, isa: Isa) -> None:
    """The same numbers as channels first: in vectors of channels with a rest, and of fewer than a vector."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    for channels, scales in ((3, (1, 1, 2, 1.5)), (21, (1, 1, 0.6, 0.4)), (40, (1, 1, 1, 3))):
        x = numbers(2, channels, 7, 10)
        inputs = [x, None, np.float32(scales)]
        (wanted,) = expected("Resize", inputs, {"cubic_coeff_a": -0.75, **attributes})
        last = np.ascontiguousarray(np.moveaxis(wanted, 1, -1))
        inputs[0] = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        given = {**attributes, "layout": "nhwc"}
        (y,) = run_node("Resize", inputs, given, types=[type_of(last)], isa=isa, constants=(2,))
        np.testing.assert_allclose(y, last, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_any_axes_together(mode: str) -> None:
    """Neighbours go in one pass, others one after another; what lies between may be ones."""
    for shape, scales in (
        ((3, 5, 7, 9), (1, 2, 0.6, 1.5)),
        ((3, 5, 7, 9), (2, 1, 1, 0.4)),
        ((6, 1, 9, 2), (1.5, 1, 0.74, 1)),
        ((2, 3, 4, 5, 3), (1, 2, 1.5, 0.6, 1)),
    ):
        _check(numbers(*shape), scales, {"mode": mode})


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_rounds_as_told(rounding: str, coordinates: str) -> None:
    """A selection, of lengths that are no whole numbers too: ONNX's reference."""
    attributes = {
        "mode": "nearest",
        "nearest_mode": rounding,
        "coordinate_transformation_mode": coordinates,
    }
    for scales in ((2.0, 1.5), (0.5, 0.74)):
        _check(numbers(8, 10), scales, attributes)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_chooses_as_onnxruntime(rounding: str, coordinates: str) -> None:
    """What lies halfway in float32, as 1.5 / 0.6 - 0.5 does, lies below that in float64."""
    attributes = {
        "mode": "nearest",
        "nearest_mode": rounding,
        "coordinate_transformation_mode": coordinates,
    }
    lengths = [(49, 30), (50, 35), (39, 24), (28, 29), (6, 4), (43, 37), (11, 13), (7, 57), (9, 39), (42, 48)]
    factors = [(50, 0.6), (45, 0.6), (40, 1.7), (20, 1.2), (50, 1.1), (10, 0.7), (60, 0.05), (30, 1.3)]
    cases = [(n, 3, ints(m)) for n, m in lengths] + [(n, 2, np.float32([s])) for n, s in factors]
    for n, place, given in cases:
        inputs: list[np.ndarray | None] = [np.arange(n, dtype=np.float32), None, None, None]
        inputs[place] = given
        wanted = answer_of_onnxruntime("Resize", inputs, attributes)
        (y,) = run_node(
            "Resize", inputs[: place + 1], attributes, types=[type_of(wanted)], isa=HOST, constants=(place,)
        )
        np.testing.assert_array_equal(y, wanted, err_msg=f"{n} by {given}")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("opset", [11, 18])
def test_half_pixels_of_tensorflow_are_not_shifted_back(mode: str, opset: int) -> None:
    """Opset 11 alone has the rule in its text, onnxruntime in every opset."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    for factors in ((0.7, 1.7), (2, 0.5), (0.3, 3)):
        inputs = [numbers(1, 1, 7, 10), np.float32([]), np.float32([1, 1, *factors])]
        wanted = answer_of_onnxruntime("Resize", inputs, attributes, opset=opset)
        (y,) = run_node("Resize", inputs, attributes, types=[type_of(wanted)], isa=HOST, constants=(1, 2))
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("factors", [(0.125, 0.5), (0.19, 0.19), (0.7, 0.125)])
def test_half_pixels_of_torch_end_at_the_first_position(mode: str, factors: tuple[float, ...]) -> None:
    """ONNX's text has the coordinate 0 for a length of 1 once rounded, as onnxruntime does."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    inputs = [numbers(1, 1, 8, 8), None, np.float32([1, 1, *factors])]
    wanted = answer_of_onnxruntime("Resize", inputs, attributes)
    (y,) = run_node("Resize", inputs, attributes, types=[type_of(wanted)], isa=HOST, constants=(2,))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("is_inside_only", [0, 1])
def test_antialias_widens_the_filter(mode: str, is_inside_only: int) -> None:
    """Only where the image shrinks."""
    attributes = {"mode": mode, "antialias": 1, "exclude_outside": is_inside_only}
    _check(numbers(13, 17), (0.3, 0.45), attributes)
    _check(numbers(5, 6), (1.5, 2.0), attributes)


def test_large_integers_are_selected_exactly() -> None:
    """Through float32 an int64 would lose its last digits."""
    x = np.array([2**53 + 1, -(2**62) - 1, 7])
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    inputs = [x, None, np.float32([2])]
    (y,) = run_node("Resize", inputs, attributes, types=[type_of(np.repeat(x, 2))], isa=HOST, constants=(2,))
    np.testing.assert_array_equal(y, np.repeat(x, 2))


def test_integers_are_interpolated_and_stay_integers() -> None:
    """Images of bytes: rounded toward zero, never wrapped."""
    x = np.array([[0, 255], [255, 0]], np.uint8)
    inputs = [x, None, None, ints(2, 3)]
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    types = [type_of(np.zeros((2, 3), np.uint8))]
    (y,) = run_node("Resize", inputs, attributes, types=types, isa=HOST, constants=(3,))
    np.testing.assert_array_equal(y, [[0, 127, 255], [255, 127, 0]])


def test_a_cropped_region_is_extrapolated() -> None:
    """What lies outside the image takes the value that is given for it."""
    x = np.arange(4, dtype=np.float32)
    attributes = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "mode": "linear",
        "extrapolation_value": 9.0,
    }
    inputs = [x, np.float32([0.5, 1.5]), None, ints(4)]
    (y,) = run_node("Resize", inputs, attributes, types=[type_of(x)], isa=HOST, constants=(1, 3))
    np.testing.assert_allclose(y, [1.5, 2.5, 9, 9])
