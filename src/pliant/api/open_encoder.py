"""Open a source as an encoder whose layers can be split over devices."""

from pathlib import Path

from pliant.api.model import (
    CheckpointModel,
    EncoderModel,
    Model,
    RandomWeights,
    StoreModel,
    unsupported_error,
)
from pliant.api.resolve import Source, resolve
from pliant.models.encoder.encoder_directory import open_directory
from pliant.models.encoder.encoder_random import random_encoder
from pliant.models.encoder.encoder_source import Encoder
from pliant.store.store_encoder import open_stored_encoder


def open_encoder(source: Source, cache: Path) -> Encoder:
    """Open the encoder that `source` names; `cache` keeps file hashes. Raises ModelError, StoreError."""
    return encoder_of(resolve(source), cache)


def encoder_of(model: Model, cache: Path) -> Encoder:
    """Open a model as an encoder. Raises ModelError for a model of another kind, and as `open_encoder`."""
    match model:
        case StoreModel():
            return open_stored_encoder(model.path)
        case CheckpointModel(path=Path() as path) | EncoderModel(weights=Path() as path):
            return open_directory(path, cache)
        case EncoderModel(weights=RandomWeights(config, seed)):
            return random_encoder(config, seed)
        case _:
            raise unsupported_error(model, "a cluster")
