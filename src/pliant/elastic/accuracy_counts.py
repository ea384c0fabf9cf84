"""Measure accuracy over the n x m grid, as a table and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table

from pliant.elastic.network import TensorMap, embed, forward
from pliant.elastic.training_batches import Sample, batch_by_length, collate
from pliant.models.spec import ModelSpec, picked_layers


@dataclass(frozen=True, slots=True)
class AccuracyCounts:
    """`correct[n - 1][i]` of `n_examples` answered right by n layers at `widths[i]` slices."""

    widths: tuple[int, ...]
    n_examples: int
    correct: tuple[tuple[int, ...], ...]

    def accuracy(self, n: int, m: int) -> float:
        """Return the share answered right by the submodel n x m; m must be one of `widths`."""
        return self.correct[n - 1][self.widths.index(m)] / self.n_examples


def count_correct(
    spec: ModelSpec,
    weights: TensorMap,
    samples: Sequence[Sample],
    depths: Sequence[int] | None = None,
) -> AccuracyCounts:
    """Return the accuracy of every submodel (n layers, trained widths); skipped depths count 0."""
    chosen = range(1, spec.n_layers + 1) if depths is None else depths
    correct = [[0] * len(spec.widths) for _ in range(spec.n_layers)]
    with torch.no_grad():
        for indices in batch_by_length(samples, 64):
            batch = collate([samples[i] for i in indices])
            x = embed(spec, weights, batch)
            for n in chosen:
                layers = picked_layers(spec.n_layers, n)
                for i, m in enumerate(spec.widths):
                    logits = forward(spec, weights, batch, x, layers, m).logits
                    correct[n - 1][i] += int((logits.argmax(1) == batch.labels).sum())
    return AccuracyCounts(spec.widths, len(samples), tuple(tuple(row) for row in correct))


def as_table(grid: AccuracyCounts, title: str) -> Table:
    """A table with a row per number of layers, a column per number of slices, and cells in per cent."""
    table = Table(title=title)
    table.add_column("layers \\ slices", justify="right")
    for m in grid.widths:
        table.add_column(str(m), justify="right")
    for n in range(1, len(grid.correct) + 1):
        table.add_row(str(n), *(f"{100 * grid.accuracy(n, m):.1f}" for m in grid.widths))
    return table


def as_json(grid: AccuracyCounts) -> dict[str, object]:
    """Return plain values for `json.dumps`: widths, n_examples, and accuracy as rows of layers."""
    return {
        "widths": list(grid.widths),
        "n_examples": grid.n_examples,
        "accuracy": [[c / grid.n_examples for c in row] for row in grid.correct],
    }
