"""`pliant.open_recurrent`: a session on a recurrent model."""

import os
from pathlib import Path

from pliant.api.load_compiled import shared_pool
from pliant.api.model import RecurrentNetwork, refused
from pliant.api.resolve import resolve
from pliant.run.graph.recurrent_session import RecurrentModel


def open_recurrent(
    source: str | os.PathLike[str], *, threads: int | None = None, cache: Path | None = None
) -> RecurrentModel:
    """A model that answers texts of any length, in time linear in their words.

    `source` is the name of a model that ships with pliant ("imdb-lstm"), a directory with config.json,
    safetensors and tokenizer.json, a hub id, or "random:CONFIG[:SEED]" ("random:cove-300"). Without
    `threads`, settings.thread_count decides; sessions of equal `threads` share them. Raises ModelError.
    """
    model = resolve(source)
    if not isinstance(model, RecurrentNetwork):
        raise refused(model, "pliant.open_recurrent")
    return RecurrentModel(model.source, *shared_pool(threads, cache))
