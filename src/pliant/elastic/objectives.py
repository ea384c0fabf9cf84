"""The losses of the three stages of DynaBERT's recipe."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from pliant.elastic.network import (
    Dropout,
    SubmodelOutput,
    TensorMap,
    TokenBatch,
    embed,
    forward,
    token_weights,
)
from pliant.models.spec import ModelSpec, picked_layers

# Outputs of layers below the last have less weight: a shallow or narrow submodel may deviate from them.
_BELOW_LAST = 0.1


@dataclass(frozen=True, slots=True)
class TuningLoss:
    """Cross-entropy of the whole model on the labels."""

    spec: ModelSpec
    dropout: float

    def __call__(
        self, weights: TensorMap, batch: TokenBatch, step_seed: str, worker_seed: int
    ) -> Iterator[torch.Tensor]:
        drop = Dropout(self.dropout, worker_seed)
        x = drop(embed(self.spec, weights, batch, is_sparse=True))
        layers = range(self.spec.n_layers)
        answer = forward(self.spec, weights, batch, x, layers, self.spec.n_heads, None, drop)
        yield functional.cross_entropy(answer.logits, batch.labels)


@dataclass(frozen=True, slots=True)
class DistillationLoss:
    """Soft labels and hidden states of a frozen teacher with the same embeddings, for several submodels.

    DynaBERT (Hou et al. 2020), equations 2 to 4. `label_share` is the weight of cross-entropy on the true
    labels (for the final fine-tuning).
    """

    spec: ModelSpec
    teacher: TensorMap
    temperature: float
    hidden_weight: float
    n_random: int
    label_share: float

    def __call__(
        self, weights: TensorMap, batch: TokenBatch, step_seed: str, worker_seed: int
    ) -> Iterator[torch.Tensor]:
        spec = self.spec
        mask = token_weights(batch)
        with torch.no_grad():
            x = embed(spec, self.teacher, batch)
            taught = forward(spec, self.teacher, batch, x, range(spec.n_layers), spec.n_heads)
        for n, m in pick_submodels(spec, self.n_random, step_seed):
            layers = picked_layers(spec.n_layers, n)
            answer = forward(spec, weights, batch, x, layers, m)
            soft = self._soft(answer, taught)
            hidden = self._hidden(answer, taught, layers, mask)
            hard = functional.cross_entropy(answer.logits, batch.labels)
            yield (1 - self.label_share) * soft + self.label_share * hard + self.hidden_weight * hidden

    def _soft(self, answer: SubmodelOutput, taught: SubmodelOutput) -> torch.Tensor:
        t = self.temperature
        target = (taught.logits / t).softmax(1)
        return functional.cross_entropy(answer.logits / t, target) * t * t

    def _hidden(
        self, answer: SubmodelOutput, taught: SubmodelOutput, layers: tuple[int, ...], mask: torch.Tensor
    ) -> torch.Tensor:
        """The mean squared difference over real tokens: the last layer, and a small weight on lower ones."""
        scale = 1.0 / (mask.sum() * self.spec.hidden)
        total = torch.zeros(())
        for i, (layer, x) in enumerate(zip(layers, answer.hidden, strict=True)):
            square = (x - taught.hidden[layer]).square().sum(2)
            total = total + (square * mask).sum() * scale * (1.0 if i == len(layers) - 1 else _BELOW_LAST)
        return total


def pick_submodels(spec: ModelSpec, n_random: int, seed: str) -> list[tuple[int, int]]:
    """Return (n, m) of one step: the full model, one of the least width, and `n_random` from the grid."""
    rng = random.Random(seed)
    N = spec.n_layers
    shallow = 1 if rng.random() < 0.1 else rng.randint(min(2, N), max(min(2, N), 2 * N // 3))
    others = [(rng.randint(min(2, N), N), rng.choice(spec.widths)) for _ in range(n_random)]
    return [(N, spec.n_heads), (shallow, spec.widths[0]), *others]
