"""Check that token ids and token types lie within a model's tables."""

import numpy as np

from pliant.arrays import Integer
from pliant.errors import InputError


def check_ids(numbers: Integer[np.ndarray, " n"], n_rows: int, what: str) -> None:
    """Raise InputError naming the first of `numbers`, each a `what`, that is not one of 0 to `n_rows` - 1."""
    if numbers.size and not 0 <= numbers.item(numbers.argmin()) <= numbers.item(numbers.argmax()) < n_rows:
        wrong = numbers[(numbers < 0) | (numbers >= n_rows)]
        raise InputError(
            f"{what} {int(wrong[0])} is not one of the model's {n_rows}: give 0 to {n_rows - 1}. Take the "
            "tokenizer that the model was trained with."
        )
