"""Padding and centred cropping through a session, against numpy's pad."""

from typing import Any

import numpy as np
import pytest

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, to_portable
from tests.compiler.rules.move.test_lower_move import check, ints, numbers
from tests.compiler.rules.run_node import run_node

HOST = to_portable(AVX2)


def _pad(x: np.ndarray, before: list[int], after: list[int], mode: str, value: float = 0.0) -> np.ndarray:
    shape = tuple(n + a + b for n, a, b in zip(x.shape, before, after, strict=True))
    inputs: list[Any] = [x, ints(*before, *after)]
    if value:
        inputs.append(np.array(value, x.dtype))
    types = [TensorType(x.dtype.name, shape)]
    return run_node("Pad", inputs, {"mode": mode}, types=types, isa=HOST, constants=(1,))[0]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((4, 5), [1, 2], [3, 0]),
        ((2, 3, 5, 7), [0, 0, 2, 1], [0, 0, 3, 4]),
        ((3,), [7], [9]),
        ((1, 4), [0, 3], [0, 3]),
        ((40, 50), [10, 20], [30, 11]),
    ],
)
def test_every_mode_matches_numpy(mode: str, shape: tuple[int, ...], before: list, after: list) -> None:
    """Also pads longer than the tensor, which reflect and wrap several times."""
    x = numbers(*shape)
    wanted = np.pad(x, list(zip(before, after, strict=True)), mode=mode)
    np.testing.assert_array_equal(_pad(x, before, after, mode), wanted)


def test_a_constant_of_any_type() -> None:
    """The value is an input of its own."""
    x = numbers(3, 4, dtype="int64")
    np.testing.assert_array_equal(
        _pad(x, [1, 0], [0, 2], "constant", 7), np.pad(x, [(1, 0), (0, 2)], constant_values=7)
    )


def test_negative_pads_cut() -> None:
    """One side may be cut while another grows."""
    x = numbers(6, 8)
    y = _pad(x, [-1, 2], [2, -3], "constant")
    np.testing.assert_array_equal(y, np.pad(x[1:, :-3], [(0, 2), (2, 0)]))
    np.testing.assert_array_equal(_pad(x, [-2, -1], [-1, -1], "edge"), x[2:-1, 1:-1])


def test_padding_by_nothing_of_nothing() -> None:
    """Zeros where all is padding; edges of nothing are refused."""
    x = numbers(0, 3)
    np.testing.assert_array_equal(_pad(x, [1, 0], [1, 0], "constant"), np.zeros((2, 3)))
    with pytest.raises(GraphError, match="nothing of which"):
        _pad(x, [1, 0], [1, 0], "edge")


def test_crop_and_pad_keep_the_centre() -> None:
    """One axis cropped, another padded; odd remainders as ONNX rounds them."""
    check("CenterCropPad", [numbers(20, 8, 3), ints(10, 11, 3)], constants=(1,))
    check("CenterCropPad", [numbers(9, 4), ints(4, 7)], constants=(1,))
