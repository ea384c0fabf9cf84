"""Stores as encoders, at any bitwidth."""

from pathlib import Path

import numpy as np
import pytest

from pliant.errors import StoreError
from pliant.models.encoder.encoder_directory import open_directory, shapes_of
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import Family
from pliant.store.build import build
from pliant.store.layers import layer_matrices, layer_weights
from pliant.store.read import open_store
from pliant.store.store_encoder import open_stored_encoder
from tests.models.encoder_runs import run_encoder
from tests.reference_model import run_model
from tests.tiny import FAMILIES, random_ids, tiny_spec, write_model

# As in tests/models/test_families.py: ours in float32 against float64, through two layers.
TOLERANCE = 1e-4


@pytest.mark.parametrize("is_classifier", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_store_at_full_fidelity_is_the_directory(
    family: Family, is_classifier: bool, tmp_path: Path
) -> None:
    """Every weight to the bit, and so the answer."""
    directory = write_model(tmp_path / "model", tiny_spec(family, is_classifier))
    stored = open_stored_encoder(build(open_checkpoint(directory), tmp_path / "store"))
    plain = open_directory(directory, tmp_path)
    for name in shapes_of(plain.family):
        np.testing.assert_array_equal(stored.tensor(name), plain.tensor(name), name)
    spec = open_checkpoint(directory).spec
    ids, types = random_ids(spec, 9)
    wanted = run_model(spec, {name: plain.tensor(name) for name in shapes_of(plain.family)}, ids, types)
    np.testing.assert_allclose(run_encoder(stored, {"ids": ids, "types": types}), wanted, atol=TOLERANCE)


def test_few_bits_are_the_stores_own_decoding(tmp_path: Path) -> None:
    """Planes as the local engine reads them, outliers in place."""
    path = build(open_checkpoint(write_model(tmp_path / "model", tiny_spec())), tmp_path / "store")
    source = open_stored_encoder(path, bits=3)
    with open_store(path) as store:
        wanted = layer_weights(store, 1, 3)
    np.testing.assert_array_equal(source.tensor("layers.1.up.weight"), wanted.up.weight)
    np.testing.assert_array_equal(source.tensor("layers.1.key.bias"), wanted.key.bias)
    np.testing.assert_array_equal(source.tensor("layers.1.output_norm.bias"), wanted.output_norm[1])
    source.release()
    np.testing.assert_array_equal(source.tensor("layers.1.up.weight"), wanted.up.weight)


def test_other_bits_are_another_model_and_a_copy_is_the_same(tmp_path: Path) -> None:
    """A device at 3 bits beside one at 6 would give an answer that neither model gives."""
    checkpoint = open_checkpoint(write_model(tmp_path / "model", tiny_spec()))
    a, b = (build(checkpoint, tmp_path / name) for name in "ab")
    assert (
        open_stored_encoder(a).identity
        == open_stored_encoder(b).identity
        == open_stored_encoder(a, bits=32).identity
    )
    assert len({open_stored_encoder(a, bits=k).identity for k in (2, 6, 32)}) == 3


def test_bits_a_store_does_not_offer_are_refused(tmp_path: Path) -> None:
    """It was built without them."""
    checkpoint = open_checkpoint(write_model(tmp_path / "model", tiny_spec()))
    path = build(checkpoint, tmp_path / "store", bits=(2, 4))
    with pytest.raises(StoreError, match="does not offer 6 bits; it offers"):
        open_stored_encoder(path, bits=6)
    assert open_stored_encoder(path).identity == open_stored_encoder(path, bits=4).identity


def test_a_damaged_plane_is_found_when_its_layer_is_read(tmp_path: Path) -> None:
    """A device must not compute with it."""
    path = build(open_checkpoint(write_model(tmp_path / "model", tiny_spec())), tmp_path / "store")
    with open_store(path) as store:
        name = store.manifest.layers[1].file
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    (path / name).write_bytes(content)
    source = open_stored_encoder(path)
    source.tensor("layers.0.up.weight")
    with pytest.raises(StoreError, match="layer 1"):
        source.tensor("layers.1.up.weight")


def test_codes_and_outliers_are_the_stores_own_decoding(tmp_path: Path) -> None:
    """At every bitwidth, for heads and neurons that are no whole groups."""
    spec = tiny_spec(hidden=36, n_heads=3, ffn=51, embedding=36, widths=(3,))
    path = build(open_checkpoint(write_model(tmp_path / "model", spec)), tmp_path / "store")
    encoder = open_stored_encoder(path)
    assert encoder.spec.coded is not None
    with open_store(path) as store:
        for bits in range(1, 7):
            for name, wanted in layer_matrices(store, 1, bits).items():
                found = encoder.codes(f"layers.1.{name}.weight")
                values = found.codebooks[bits][found.codes >> found.bits - bits]
                values[found.rows, found.columns] = found.values
                np.testing.assert_array_equal(values, wanted, name)


def test_a_store_of_fewer_planes_says_so(tmp_path: Path) -> None:
    """Codes are of as many bits as there are, and of matrices alone."""
    checkpoint = open_checkpoint(write_model(tmp_path / "model", tiny_spec()))
    few = open_stored_encoder(build(checkpoint, tmp_path / "few", bits=(2, 3)))
    assert few.spec.coded is not None
    assert few.spec.coded.bits == few.codes("layers.0.up.weight").bits == 3
    for name in ("layers.0.up.bias", "layers.9.up.weight", "head.dense.weight"):
        with pytest.raises(StoreError, match="no "):
            few.codes(name)
