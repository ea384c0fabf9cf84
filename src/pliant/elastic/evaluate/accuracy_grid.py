"""Accuracy of every trained submodel at uniform bits, measured on labelled examples.

A layer's input depends only on the layers run before it, so submodels of one width share their common first
layers, and each of these is run once per example (14 layers instead of 21 for a model of six).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float, Int
from pliant.elastic.evaluate.labelled_inputs import LabelledInput, embed_input, log_likelihood, run_layer
from pliant.errors import InputError
from pliant.ir.bitwidths import FULL_BITS
from pliant.models.spec import picked_layers
from pliant.run.submodel.engine import Engine
from pliant.store.manifest import AccuracyEntry, AccuracyFold, AccuracyTable

# Accuracy is interpolated in between; 5 bits differ from 6 by less than any table resolves.
GRID_BITS = (2, 3, 4, 6, FULL_BITS)

# Each fold evaluates a submodel that the other folds chose (plan/submodel/accuracy.py).
N_FOLDS = 5

OnCell = Callable[[int, int], None]  # (submodels done, total)


def measure_grid(
    engine: Engine,
    examples: Sequence[LabelledInput],
    *,
    bits: Sequence[int] = GRID_BITS,
    on_cell: OnCell = lambda done, total: None,
) -> AccuracyTable:
    """Return accuracy and mean log-likelihood of each n x m at each of `bits` that the store offers.

    Depths are 1 to N, widths the trained ones. The examples are assigned in turn to `N_FOLDS` folds; fewer
    folds if there are fewer examples, none for a single one. Raises InputError without examples, labels or
    bits, and StoreError if a shard is damaged. The engine's weights are unset on return.
    """
    spec = engine.spec
    offered = [b for b in bits if b in engine.store.manifest.bits]
    if not examples or spec.head.labels is None or not offered:
        raise InputError(
            "an accuracy grid needs a classifier, at least one labelled example, and one of the store's "
            f"bitwidths {','.join(map(str, engine.store.manifest.bits))}."
        )
    N, total = spec.n_layers, len(offered) * len(spec.widths) * spec.n_layers
    folds = np.arange(len(examples)) % N_FOLDS
    entries: list[AccuracyEntry] = []
    parts: list[_FoldMeans] = []
    for k in offered:
        engine.hold(np.full((N, spec.n_heads), k, np.int64))
        for m in spec.widths:
            right, likelihood = np.zeros((N, len(examples))), np.zeros((N, len(examples)))
            for i, example in enumerate(examples):
                for n, logits in enumerate(_every_depth(engine, example, m)):
                    right[n, i] = int(np.argmax(logits)) == example.label
                    likelihood[n, i] = min(0.0, log_likelihood(logits, example.label))
            for n in range(N):
                parts.append(_FoldMeans(_by_fold(right[n], folds), _by_fold(likelihood[n], folds)))
                entries.append(
                    AccuracyEntry(n + 1, m, k, float(right[n].mean()), float(likelihood[n].mean()))
                )
            on_cell(len(entries), total)
    engine.hold(np.zeros((N, spec.n_heads), np.int64))
    return AccuracyTable(len(examples), tuple(entries), _folds(np.bincount(folds).tolist(), parts))


@dataclass(frozen=True, slots=True)
class _FoldMeans:
    """Means of one entry, one per fold."""

    accuracy: list[float]
    log_likelihood: list[float]


def _by_fold(values: Float[np.ndarray, " X"], folds: Int[np.ndarray, " X"]) -> list[float]:
    means: list[float] = (np.bincount(folds, values) / np.bincount(folds)).tolist()
    return means


def _folds(sizes: Sequence[int], parts: Sequence[_FoldMeans]) -> tuple[AccuracyFold, ...]:
    if len(sizes) < 2:
        return ()
    return tuple(
        AccuracyFold(n, tuple(p.accuracy[f] for p in parts), tuple(p.log_likelihood[f] for p in parts))
        for f, n in enumerate(sizes)
    )


def _every_depth(engine: Engine, example: LabelledInput, width: int) -> list[Float[np.ndarray, " C"]]:
    """Return the answers of the submodels of 1 to N layers, in that order."""
    N = engine.spec.n_layers
    known: dict[tuple[int, ...], np.ndarray] = {(): embed_input(engine, example.encoded)}
    answers = []
    for n in range(1, N + 1):
        layers = picked_layers(N, n)
        for k, layer in enumerate(layers):
            if layers[: k + 1] not in known:
                known[layers[: k + 1]] = run_layer(engine, layer, width, known[layers[:k]])
        engine.encoder.hidden[: example.encoded.n_tokens] = known[layers]
        answers.append(engine.head(example.encoded.n_tokens))
    return answers
