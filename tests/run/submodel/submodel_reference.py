"""The answer of one submodel by the engine alone: what a session that did other things as well must equal."""

from pathlib import Path

import numpy as np

from pliant.ir.reply import Reply
from pliant.models.tokenizer import TokenizedInput, open_tokenizer
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.engine import Engine
from pliant.store.read import Store


class Reference:
    """What the submodel and the bits that a reply names answer, with all weights in memory, by one thread."""

    def __init__(self, store: Store, cache: Path) -> None:
        self._store, self._engine = store, Engine(store, cache=cache)
        self.encode = open_tokenizer(store.path, store.spec).encode

    def logits(self, encoded: TokenizedInput, reply: Reply[ElasticDetails]) -> np.ndarray:
        ran, (_, width) = reply.details, reply.details.submodel
        layers = tuple(
            step.work.layer for step in ran.program.steps if getattr(step.work, "kernel", "") == "layer"
        )
        bits = np.zeros((self._store.spec.n_layers, self._store.spec.n_heads), int)
        bits[list(layers), :width] = ran.bits
        self._engine.hold(bits)
        return self._engine.answer(encoded, layers, width)

    def scores(self, encoded: TokenizedInput, reply: Reply[ElasticDetails]) -> np.ndarray:
        logits = self.logits(encoded, reply)
        shares = np.exp(logits.astype(np.float64))
        return np.asarray(shares / shares.sum())

    def close(self) -> None:
        self._engine.close()
