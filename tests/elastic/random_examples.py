"""Random inputs with random labels."""

from collections.abc import Sequence

import numpy as np

from pliant.elastic.evaluate.labelled_inputs import LabelledInput
from pliant.models.tokenizer import TokenizedInput


def random_examples(vocab: int, lengths: Sequence[int]) -> tuple[LabelledInput, ...]:
    """One of two classes for each of `lengths`, in tokens."""
    rng = np.random.default_rng(3)
    return tuple(
        LabelledInput(
            TokenizedInput(rng.integers(5, vocab, n).astype(np.int32), np.zeros(n, np.int32)),
            int(rng.integers(0, 2)),
        )
        for n in lengths
    )
