"""The paper's ablation (STI 5.2): one shard at full fidelity, all others at the lowest bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float, Int
from pliant.elastic.evaluate.labelled_inputs import LabelledInput, embed_input, log_likelihood, run_layer
from pliant.errors import InputError
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS
from pliant.run.submodel.engine import Engine, runs_of
from pliant.run.submodel.preload_buffer import PreloadBuffer

OnShard = Callable[[int, int], None]  # (shards done, total)


@dataclass(frozen=True, slots=True)
class Ablation:
    """The effect of one shard at full fidelity with all others at the lowest bits.

    `accuracy` is a fraction and `log_likelihood` the mean logarithm of the right label's probability, both
    over `n_examples`; the `floor` values are those with every shard at the lowest bits.
    """

    n_examples: int
    accuracy: Float[np.ndarray, "N M"]
    log_likelihood: Float[np.ndarray, "N M"]
    floor_accuracy: float
    floor_log_likelihood: float

    @property
    def importance(self) -> Float[np.ndarray, "N M"]:
        """Accuracy as in the paper; the likelihood, worth less than one answer, breaks ties."""
        low, high = float(self.log_likelihood.min()), float(self.log_likelihood.max())
        share = (self.log_likelihood - low) / (high - low) if high > low else np.zeros_like(self.accuracy)
        return np.asarray(self.accuracy + 0.5 * share / self.n_examples)


def ablate(
    engine: Engine, examples: Sequence[LabelledInput], *, on_shard: OnShard = lambda done, total: None
) -> Ablation:
    """Run the ablation of STI 5.2 over the whole model, one engine call per layer and input.

    Every shard runs at 2 bits except one at full fidelity. A layer's input does not depend on that layer, so
    it is computed once per layer and input: only the changed layer and those above it run again, (N + 1) / 2
    of N layers on average. Raises InputError without examples or labels, and StoreError if a shard is
    damaged. The engine's weights are unset on return.
    """
    if not examples or engine.spec.head.labels is None:
        raise InputError("an ablation needs a classifier and at least one labelled example.")
    N, M = engine.spec.n_layers, engine.spec.n_heads
    accuracy, likelihood = np.zeros((N, M)), np.zeros((N, M))
    with _TwoFidelities(engine):
        inputs = [embed_input(engine, example.encoded) for example in examples]
        floor = (0.0, 0.0)
        for layer in range(N):
            if layer == 0:
                floor = _judge(engine, inputs, examples, 0)
            for s in range(M):
                engine.set_bits(layer, _one_full(M, s))
                accuracy[layer, s], likelihood[layer, s] = _judge(engine, inputs, examples, layer)
                on_shard(layer * M + s + 1, N * M)
            engine.set_bits(layer, _lowest(M))
            inputs = [_through(engine, layer, hidden) for hidden in inputs]
    return Ablation(len(examples), accuracy, likelihood, *floor)


class _TwoFidelities:
    """Holds every shard at the lowest bits, in use, and at full fidelity, inside a `with` block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held = PreloadBuffer()

    def __enter__(self) -> None:
        engine = self._engine
        shape = (engine.spec.n_layers, engine.spec.n_heads)
        lowest, full = (runs_of(np.full(shape, bits, np.int64)) for bits in (LOWEST_BITS, FULL_BITS))
        self._held.fill(engine.store, (*lowest, *full))
        for run in self._held.runs:
            engine.encoder.place(run.layer, run.part, run.first, run.count, self._held.buffer(run))
        for layer in range(shape[0]):
            engine.set_bits(layer, _lowest(shape[1]))

    def __exit__(self, *_: object) -> None:
        # The encoder's weights are about to be freed: nothing may run before the next `hold`.
        self._engine.hold(np.zeros((self._engine.spec.n_layers, self._engine.spec.n_heads), np.int64))
        self._held.fill(self._engine.store, ())


def _through(engine: Engine, layer: int, hidden: Float[np.ndarray, "T d"]) -> Float[np.ndarray, "T d"]:
    return run_layer(engine, layer, engine.spec.n_heads, hidden)


def _judge(
    engine: Engine, inputs: Sequence[Float[np.ndarray, "_ d"]], examples: Sequence[LabelledInput], first: int
) -> tuple[float, float]:
    """Return accuracy and mean log-likelihood of layers `first` and above, given the inputs of `first`."""
    spec, encoder = engine.spec, engine.encoder
    n_right, likelihood = 0, 0.0
    for hidden, example in zip(inputs, examples, strict=True):
        n = len(hidden)
        encoder.hidden[:n] = hidden
        for layer in range(first, spec.n_layers):
            engine.layer(layer, spec.n_heads, n)
        logits = engine.head(n)
        n_right += int(np.argmax(logits)) == example.label
        likelihood += log_likelihood(logits, example.label)
    return n_right / len(examples), likelihood / len(examples)


def _lowest(n_slices: int) -> Int[np.ndarray, " M"]:
    return np.full(n_slices, LOWEST_BITS, np.int64)


def _one_full(n_slices: int, s: int) -> Int[np.ndarray, " M"]:
    row = _lowest(n_slices)
    row[s] = FULL_BITS
    return row
