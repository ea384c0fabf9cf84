"""Labelled inputs, the engine's state between layers, and the score of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pliant.arrays import Float
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LabelledInput:
    """One tokenised input and the index of its label."""

    encoded: TokenizedInput
    label: int


def pick_evenly(examples: Sequence[T], limit: int | None) -> tuple[T, ...]:
    """Return all examples, or at most `limit` (at least 1) of them at even steps."""
    n = len(examples)
    if limit is None or limit >= n:
        return tuple(examples)
    return tuple([examples[i * n // limit] for i in range(limit)])


def embed_input(engine: Engine, encoded: TokenizedInput) -> Float[np.ndarray, "T d"]:
    """Return the input of the first layer."""
    engine.embed(encoded.ids, encoded.types)
    return engine.encoder.hidden[: encoded.n_tokens].copy()


def run_layer(
    engine: Engine, layer: int, width: int, hidden: Float[np.ndarray, "T d"]
) -> Float[np.ndarray, "T d"]:
    """Return the output of `layer` for the input `hidden`."""
    n = len(hidden)
    engine.encoder.hidden[:n] = hidden
    engine.layer(layer, width, n)
    return engine.encoder.hidden[:n].copy()


def log_likelihood(logits: Float[np.ndarray, " C"], label: int) -> float:
    """Return the natural logarithm of the probability that `logits` give `label`."""
    z = logits.astype(np.float64)
    return float(z[label] - z.max() - np.log(np.exp(z - z.max()).sum()))
