"""A small store, large enough that its matrices are worth coding, as an encoder."""

from pathlib import Path

from pliant.models.encoder.encoder_source import Encoder
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from pliant.store.store_encoder import open_stored_encoder
from tests.tiny import tiny_spec, write_model

BITS = (2, 3, 4, 5, 6, 32)


def small_store(folder: Path, bits: tuple[int, ...] = BITS) -> Path:
    """Three layers of 4 heads of 48; neither 48 nor the 400 columns are whole groups of 32."""
    spec = tiny_spec(hidden=192, ffn=400, embedding=192, n_layers=3)
    return build(open_checkpoint(write_model(folder / "model", spec)), folder / "store", bits=bits)


def small_encoder(folder: Path) -> Encoder:
    return open_stored_encoder(small_store(folder))
