"""Open a recurrent model by name. Knows where models are, no graph and no kernel."""

import os
from pathlib import Path

from pliant.api.load_compiled import shared_pool
from pliant.api.open_elastic import model_directory, shipped_models
from pliant.models.recurrent.recurrent_source import RANDOM, RecurrentSource, open_recurrent_source
from pliant.models.recurrent.recurrent_spec import is_recurrent
from pliant.run.graph.recurrent_session import RecurrentModel


def open_recurrent(
    source: str | os.PathLike[str], *, threads: int | None = None, cache: Path | None = None
) -> RecurrentModel:
    """A model that answers texts of any length, in time linear in their words.

    `source` is the name of a model that ships with pliant ("imdb-lstm"), a directory with config.json,
    safetensors and tokenizer.json, a hub id, or "random:CONFIG[:SEED]" ("random:cove-300"). Without
    `threads`, settings.thread_count decides; sessions of equal `threads` share them. Raises ModelError.
    """
    return RecurrentModel(recurrent_source(source), *shared_pool(threads, cache))


def recurrent_source(source: str | os.PathLike[str]) -> RecurrentSource:
    """The model that `source` names, as `open_recurrent` takes it; nothing is compiled. Raises ModelError."""
    name = os.fspath(source)
    return open_recurrent_source(name if name.startswith(f"{RANDOM}:") else model_directory(name))


def names_recurrent(source: str | os.PathLike[str]) -> bool:
    """Whether `source` is a recurrent model; what only a hub may have is not looked up."""
    name = os.fspath(source)
    if name.startswith(f"{RANDOM}:"):
        return True
    if name not in shipped_models() and not Path(name).is_dir():
        return False
    config = model_directory(name) / "config.json"
    return config.is_file() and is_recurrent(config)
