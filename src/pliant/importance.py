"""How much each shard matters (STI 5.2): the paper's ablation, and a score that never looks at a label.

Knows one engine whose store offers the lowest bits and full fidelity. Plans nothing; drawing is optional.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from pliant.errors import InputError
from pliant.evaluate.answers import Labelled as Labelled
from pliant.evaluate.answers import embedded, log_likelihood, through
from pliant.models.tokenizer import Encoded
from pliant.run.engine import Engine, runs_of
from pliant.run.preload import PreloadBuffer

LOWEST_BITS, FULL_BITS = 2, 32

OnShard = Callable[[int, int], None]  # shards done, of how many


@dataclass(frozen=True, slots=True)
class Ablation:
    """What one shard at full fidelity gives when all others stay at the lowest bits.

    `accuracy` is a fraction and `log_likelihood` the mean logarithm of the right label's probability,
    both over `n_examples`; the `floor` values are those with every shard at the lowest bits.
    """

    n_examples: int
    accuracy: Float[np.ndarray, "N M"]
    log_likelihood: Float[np.ndarray, "N M"]
    floor_accuracy: float
    floor_log_likelihood: float

    @property
    def importance(self) -> Float[np.ndarray, "N M"]:
        """Accuracy as in the paper; likelihood, worth less than one answer, orders shards that tie."""
        low, high = float(self.log_likelihood.min()), float(self.log_likelihood.max())
        share = (self.log_likelihood - low) / (high - low) if high > low else np.zeros_like(self.accuracy)
        return np.asarray(self.accuracy + 0.5 * share / self.n_examples)


def ablate(
    engine: Engine, examples: Sequence[Labelled], *, on_shard: OnShard = lambda done, total: None
) -> Ablation:
    """The ablation of STI 5.2 over the whole model, one engine call a layer and input.

    Every shard runs at 2 bits but one at full fidelity. What enters a layer does not depend on that
    layer, so it is computed once a layer and input and kept: only the changed layer and those above it
    run again, (N + 1) / 2 of N layers on average. Raises InputError without examples or labels, and
    StoreError when a shard is damaged. The engine's weights are unset when it returns.
    """
    if not examples or engine.spec.head.labels is None:
        raise InputError("an ablation needs a classifier and at least one labelled example.")
    N, M = engine.spec.n_layers, engine.spec.n_heads
    accuracy, likelihood = np.zeros((N, M)), np.zeros((N, M))
    with _Both(engine):
        inputs = [embedded(engine, example.encoded) for example in examples]
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


def layer_change(engine: Engine, texts: Sequence[Encoded]) -> Float[np.ndarray, "N M"]:
    """How far one shard at full fidelity moves its own layer's output, relative to that output: [N, M].

    A stand-in for the ablation that needs no labels and runs no other layer: the root of the mean, over
    `texts`, of |f(x; shard full) - f(x; all at 2 bits)|^2 / |f(x; all at 2 bits)|^2. It takes no
    gradient, so it cannot tell a change that moves the answer from one that does not.
    """
    if not texts:
        raise InputError("at least one text is needed to see how far a layer's output moves.")
    N, M = engine.spec.n_layers, engine.spec.n_heads
    change = np.zeros((N, M))
    with _Both(engine):
        inputs = [embedded(engine, text) for text in texts]
        for layer in range(N):
            outputs = [_through(engine, layer, hidden) for hidden in inputs]
            for s in range(M):
                engine.set_bits(layer, _one_full(M, s))
                moved = [_through(engine, layer, hidden) for hidden in inputs]
                change[layer, s] = np.sqrt(
                    np.mean([_relative(a, b) for a, b in zip(moved, outputs, strict=True)])
                )
            engine.set_bits(layer, _lowest(M))
            inputs = outputs
    return change


def rank_correlation(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Spearman's rho: the correlation of ranks, ties sharing their mean rank; nan when one is constant."""
    x, y = _ranks(np.asarray(a).ravel()), _ranks(np.asarray(b).ravel())
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"ranks of {len(x)} and {len(y)} values cannot be compared; give two equal tables.")
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else float("nan")


def importance_text(table: Float[np.ndarray, "N M"]) -> str:
    """Figure 5 in characters: a row a layer, a column a slice, 0 the least and 9 the most important."""
    low, high = float(table.min()), float(table.max())
    tenths = np.zeros(table.shape, int) if high <= low else np.minimum(9, 10 * (table - low) / (high - low))
    rows = [f"layer {k:2d}  " + " ".join(str(int(v)) for v in row) for k, row in enumerate(tenths)]
    return "\n".join(rows) + "\n"


def draw_importance(table: Float[np.ndarray, "N M"], path: Path, title: str) -> Path:
    """Figure 5: a heat map, lighter is more important; `path` ends in .svg, .png or .pdf.

    Raises InputError without the extra `[plot]`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a heat map needs matplotlib: pip install 'pliant[plot]'.") from error
    figure = Figure(figsize=(1.5 + 0.4 * table.shape[1], 1.3 + 0.4 * table.shape[0]), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, cmap="gray", aspect="auto")
    axes.set(xlabel="slice", ylabel="layer", title=title)
    axes.set_xticks(range(table.shape[1]))
    axes.set_yticks(range(table.shape[0]))
    figure.colorbar(image)
    figure.savefig(path)
    return path


class _Both:
    """Holds every shard at the lowest bits and at full fidelity, the lowest in use, while a block runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held = PreloadBuffer()

    def __enter__(self) -> None:
        engine = self._engine
        shape = (engine.spec.n_layers, engine.spec.n_heads)
        lowest, full = (runs_of(np.full(shape, bits, np.int64)) for bits in (LOWEST_BITS, FULL_BITS))
        self._held.fill(engine.store, (*lowest, *full))
        for run in self._held.runs:
            engine.encoder.place(run.layer, run.part, run.first, run.count, self._held.address(run))
        for layer in range(shape[0]):
            engine.set_bits(layer, _lowest(shape[1]))

    def __exit__(self, *_: object) -> None:
        # What the encoder points at is about to go: from here on nothing may run before `hold`.
        self._engine.hold(np.zeros((self._engine.spec.n_layers, self._engine.spec.n_heads), np.int64))
        self._held.fill(self._engine.store, ())


def _through(engine: Engine, layer: int, hidden: Float[np.ndarray, "T d"]) -> Float[np.ndarray, "T d"]:
    return through(engine, layer, engine.spec.n_heads, hidden)


def _judge(
    engine: Engine, inputs: Sequence[Float[np.ndarray, "T d"]], examples: Sequence[Labelled], first: int
) -> tuple[float, float]:
    """Accuracy and mean log-likelihood when layers `first` and above run on what enters layer `first`."""
    spec, arena = engine.spec, engine.encoder.arena
    n_right, likelihood = 0, 0.0
    for hidden, example in zip(inputs, examples, strict=True):
        n = len(hidden)
        arena.hidden[:n] = hidden
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


def _relative(moved: np.ndarray, before: np.ndarray) -> float:
    a, b = moved.astype(np.float64), before.astype(np.float64)
    return float(((a - b) ** 2).sum() / max(float((b**2).sum()), 1e-30))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[where], np.float64)
