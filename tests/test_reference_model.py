"""The oracle itself: its submodels are the whole model with the other slices silenced."""

import numpy as np
import pytest

from pliant.models.spec import Family
from tests.reference_model import encode
from tests.tiny import FAMILIES, random_ids, random_tensors, tiny_spec


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_narrow_model_is_the_whole_one_with_silent_slices(family: Family, m: int) -> None:
    """A slice adds to the residual through `output` and `down`; zero columns there silence it."""
    spec = tiny_spec(family)
    tensors = random_tensors(spec)
    silenced = dict(tensors)
    for layer in range(spec.n_layers):
        for part, width in (("output", spec.head_dim), ("down", spec.slice_ffn)):
            name = f"layers.{layer}.{part}.weight"
            silenced[name] = tensors[name].copy()
            silenced[name][:, m * width :] = 0
    ids, types = random_ids(spec, 13)
    assert np.allclose(encode(spec, tensors, ids, types, m=m), encode(spec, silenced, ids, types), atol=1e-12)


def test_a_shallow_model_runs_the_picked_layers_only() -> None:
    """One layer of a submodel is the last one; the others must not run at all."""
    spec = tiny_spec(n_layers=4)
    tensors = random_tensors(spec)
    ids, types = random_ids(spec, 5)
    assert np.array_equal(
        encode(spec, tensors, ids, types, n=1), encode(spec, tensors, ids, types, layers=[3])
    )
    assert np.array_equal(
        encode(spec, tensors, ids, types, n=3), encode(spec, tensors, ids, types, layers=[0, 2, 3])
    )
