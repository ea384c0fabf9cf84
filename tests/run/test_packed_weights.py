"""Weights shared by images."""

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from pliant.compiler.executable.call import PackedConstant
from pliant.run.packed_weights import SharedWeights


def test_packed_forms_go_with_the_last_image_that_reads_them() -> None:
    """Another shape may want its weights in another form; both are held only while both are in use."""
    source = np.ones(16, np.float32)

    def made(form: str) -> dict[str, np.ndarray]:
        image: Any = SimpleNamespace(
            constants={}, packed={form: PackedConstant(64, lambda memory: None, "w")}
        )
        return weights.pack(image, {"w": source})

    weights = SharedWeights()
    rows, panels = made("w|rows"), made("w|panels")
    assert made("w|rows")["w|rows"] is rows["w|rows"]
    dropped = weakref.ref(rows["w|rows"])
    del rows
    weights.keep([panels])
    assert dropped() is None
    assert made("w|panels")["w|panels"] is panels["w|panels"]


def test_small_constants_are_held_once_on_cache_lines_and_not_in_their_file() -> None:
    """Kernels that decode planes load whole lines: a copy that begins elsewhere is a segmentation fault."""
    mapped = np.arange(40, dtype=np.float32)[1:]
    number = np.array(3, np.int64)
    image: Any = SimpleNamespace(constants={"a": mapped, "n": number}, packed={})
    weights = SharedWeights()
    held = weights.pack(image, {})
    assert held["a"].ctypes.data % 64 == 0
    assert held["n"].ctypes.data % 64 == 0
    assert not np.shares_memory(held["a"], mapped)
    np.testing.assert_array_equal(held["a"], mapped)
    assert held["n"].shape == ()
    assert weights.pack(image, {})["a"] is held["a"]
