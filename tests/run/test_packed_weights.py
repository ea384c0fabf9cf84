"""Weights shared by images."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from pliant.run.packed_weights import SharedWeights


def test_small_constants_are_held_once_on_cache_lines_and_not_in_their_file() -> None:
    """Kernels that decode planes load whole lines: a copy that begins elsewhere is a segmentation fault."""
    mapped = np.arange(40, dtype=np.float32)[1:]
    number = np.array(3, np.int64)
    image: Any = SimpleNamespace(constants={"a": mapped, "n": number}, packed={})
    weights = SharedWeights()
    held = weights.of(image, {})
    assert held["a"].ctypes.data % 64 == 0
    assert held["n"].ctypes.data % 64 == 0
    assert not np.shares_memory(held["a"], mapped)
    np.testing.assert_array_equal(held["a"], mapped)
    assert held["n"].shape == ()
    assert weights.of(image, {})["a"] is held["a"]
