"""Cutting a layer into slices against plain indexing, and joining it again."""

import numpy as np
import pytest

from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import ModelSpec
from pliant.store.coding.cut_slices import column_group_starts, cut, from_groups, join
from tests.tiny import random_tensors, tiny_spec

SPECS = {
    "head_dim 8": tiny_spec(),
    "odd hidden": tiny_spec(hidden=36, embedding=36, ffn=52),
    "no padding": tiny_spec(n_heads=2, hidden=64, embedding=64, ffn=128, widths=(2,)),
}


def layer_of(spec: ModelSpec) -> dict[str, np.ndarray]:
    tensors = random_tensors(spec)
    return {n: tensors[f"layers.0.{n}.weight"] for n in ("query", "key", "value", "output", "up", "down")}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_join_undoes_cut(spec: ModelSpec) -> None:
    """No weight may be lost or doubled between checkpoint and store."""
    layer = layer_of(spec)
    joined = join(spec, cut(spec, layer)[0])
    assert joined.keys() == layer.keys()
    for name, matrix in layer.items():
        np.testing.assert_array_equal(joined[name], matrix)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_slice_holds_one_head_and_its_share_of_neurons(spec: ModelSpec) -> None:
    """STI Table 1, element by element."""
    layer, geometry = layer_of(spec), slice_geometry(spec)
    slices, is_padding = cut(spec, layer)
    qkv, output, up, down = (from_groups(m, slices[1]) for m in geometry.matrices)
    h, f, d = spec.head_dim, spec.slice_ffn, spec.hidden
    for i, name in enumerate(("query", "key", "value")):
        for column in (0, h - 1):
            np.testing.assert_array_equal(qkv[:d, i * geometry.head_dim + column], layer[name][h + column])
    np.testing.assert_array_equal(output[h - 1, :d], layer["output"][:, 2 * h - 1])
    np.testing.assert_array_equal(up[:d, f - 1], layer["up"][2 * f - 1])
    np.testing.assert_array_equal(down[0, :d], layer["down"][:, f])
    assert np.count_nonzero(~is_padding) * spec.n_heads == sum(m.size for m in layer.values())
    assert not slices[:, is_padding].any()


def test_column_groups_follow_one_another() -> None:
    """A kernel walks a column group's rows as one stretch of memory."""
    spec = SPECS["odd hidden"]
    geometry = slice_geometry(spec)
    starts = column_group_starts(geometry)
    assert len(starts) == geometry.column_groups + 1
    expected = [16 * m.rows for m in geometry.matrices for _ in range(m.column_groups)]
    np.testing.assert_array_equal(np.diff(starts), expected)
    slices, _ = cut(spec, layer_of(spec))
    m = geometry.matrices[1]
    group = slices[0].reshape(-1)[starts[m.first_column_group + 1] :][: 16 * m.rows].reshape(m.rows, 16)
    np.testing.assert_array_equal(group, from_groups(m, slices[0])[:, 16:32])
