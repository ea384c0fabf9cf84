"""The table of names is complete and unambiguous: no two tensors share a name, none is without one."""

import pytest

from pliant.models.hf.weight_names import find_name, saved_name
from pliant.models.spec import Family, tensor_shapes
from tests.tiny import FAMILIES, tiny_spec


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_one_name_of_its_own(family: Family) -> None:
    """Two tensors under one name would overwrite each other on disk."""
    names = [name for name, _ in tensor_shapes(tiny_spec(family))]
    saved = [saved_name(family, name) for name in names]
    assert len(set(saved)) == len(names)
    assert [find_name(family, name, saved) for name in names] == saved


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_with_the_prefix_wins_over_one_without(family: Family) -> None:
    """Where a wrapper saved both, the declared class loads the prefixed one."""
    name = saved_name(family, "embeddings.word")
    assert find_name(family, "embeddings.word", {name, "embeddings.word_embeddings.weight"}) == name


def test_a_tensor_that_is_not_there_is_none() -> None:
    """The caller names all that are missing at once."""
    assert find_name("bert", "layers.0.up.weight", {"bert.encoder.layer.1.intermediate.dense.weight"}) is None
