"""The memory of a layer's inputs: when an int8 layer must compute the sums of its columns."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.executable.weight_inputs import LayerSlices
from pliant.kernels.emit.isa import host_isa
from pliant.models.encoder.encoder_graph import n_sums
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from pliant.store.read import open_store


@pytest.fixture
def tiny(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A store."""
    return build(open_checkpoint(tiny_model()), tmp_path / "store")


@pytest.fixture
def layer(tiny: Path) -> LayerSlices:
    """An int8 layer of four slices."""
    with open_store(tiny) as store:
        return LayerSlices(store.spec, store.resident(0), host_isa(), "int8")


def has_sums(layer: LayerSlices, bits: list[int]) -> bool:
    """What the header says in a run with `bits`."""
    layer.set_bits(bits)
    (sums,) = (array for array in layer.arrays if array.dtype == np.int32)
    with layer.column_sums(len(bits)):
        return bool(sums[0])


def test_sums_are_computed_once_for_a_width_and_its_bits(layer: LayerSlices) -> None:
    """They took up to half of a product's time; sums of other slices or codes would be another answer."""
    runs = ([4, 4, 4], [4, 4, 4], [4, 4, 5], [4, 4], [4, 4], [4, 4, 5], [32, 32, 32], [32, 32, 32])
    assert [has_sums(layer, bits) for bits in runs] == [False, True, False, False, True, False, False, True]


def test_an_interrupted_run_leaves_no_sums(layer: LayerSlices) -> None:
    """It may have written some of them."""
    assert not has_sums(layer, [4, 4])
    with pytest.raises(KeyboardInterrupt), layer.column_sums(2):
        raise KeyboardInterrupt
    assert not has_sums(layer, [4, 4])
    assert has_sums(layer, [4, 4])


def test_other_products_keep_no_sums(tiny: Path) -> None:
    """The sums of int8 count as memory of the layer, and the others need none."""
    with open_store(tiny) as store:
        for compute, n in (("int8", n_sums(store.spec)), ("fp32", 0)):
            made = LayerSlices(store.spec, store.resident(0), host_isa(), compute)
            assert sum(a.size for a in made.arrays if a.dtype == np.int32) == n
            assert ("sums" in made.buffers) == (n > 0)
