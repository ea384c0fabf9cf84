"""Group examples into batches of similar length."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pliant.elastic.network import TokenBatch
from pliant.models.examples import Example
from pliant.models.tokenizer import TokenizedInput, Tokenizer, encode_example

# Batches are cut from pools of this many batches, sorted by length: little padding, random order.
_POOL = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """One tokenised example."""

    encoded: TokenizedInput
    label: int


def tokenise(tokenizer: Tokenizer, examples: Sequence[Example], max_tokens: int | None) -> tuple[Sample, ...]:
    """Return the token ids of every example; with `max_tokens`, the longer text is truncated until it fits.

    Without it nothing is truncated, and a text beyond the model's positions raises InputError naming its
    line.
    """
    return tuple(Sample(_encode(tokenizer, e, max_tokens), e.label) for e in examples)


def shuffle_batches(samples: Sequence[Sample], batch: int, seed: str) -> list[list[int]]:
    """Return one epoch's batches as indices: random pools, sorted by length inside, in random order."""
    rng = random.Random(seed)
    order = list(range(len(samples)))
    rng.shuffle(order)
    pools = [
        sorted(order[i : i + batch * _POOL], key=lambda i: samples[i].encoded.n_tokens)
        for i in range(0, len(order), batch * _POOL)
    ]
    batches = [pool[i : i + batch] for pool in pools for i in range(0, len(pool), batch)]
    rng.shuffle(batches)
    return batches


def batch_by_length(samples: Sequence[Sample], batch: int) -> Iterator[list[int]]:
    """Yield batches of indices of all samples, shortest first, for evaluation."""
    order = sorted(range(len(samples)), key=lambda i: samples[i].encoded.n_tokens)
    for i in range(0, len(order), batch):
        yield order[i : i + batch]


def collate(samples: Sequence[Sample]) -> TokenBatch:
    """Pad to the longest; padding ids are 0 and masked in all operations that they could affect."""
    lengths = [s.encoded.n_tokens for s in samples]
    ids = torch.zeros(len(samples), max(lengths), dtype=torch.long)
    types = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        ids[row, : lengths[row]] = torch.from_numpy(sample.encoded.ids)
        types[row, : lengths[row]] = torch.from_numpy(sample.encoded.types)
    labels = torch.tensor([s.label for s in samples])
    return TokenBatch(ids, types, torch.tensor(lengths), labels, min(lengths) != max(lengths))


def _encode(tokenizer: Tokenizer, example: Example, max_tokens: int | None) -> TokenizedInput:
    if max_tokens is None:
        return encode_example(tokenizer, example)
    return tokenizer.encode(*tokenizer.truncate(example.text, example.pair, max_tokens))
