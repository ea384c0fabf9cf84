"""Text and labels as tensors of requests and answers. Knows no model."""

from collections.abc import Mapping, Sequence

import numpy as np

from pliant.errors import InputError

Tensors = Mapping[str, np.ndarray]


def text_of(tensors: Tensors) -> str:
    """What `text` BYTES [1] says. Raises InputError where it is not UTF-8."""
    try:
        return str(tensors["text"][0].decode())
    except UnicodeDecodeError as error:
        raise InputError(f"`text` is not UTF-8 at byte {error.start}.") from error


def as_bytes(text: str) -> np.ndarray:
    """`text` as BYTES [1]."""
    array = np.empty(1, object)
    array[0] = text.encode()
    return array


def classified(scores: Sequence[float], label: str) -> Tensors:
    """`logits` FP32 [1, labels], logarithms of the probabilities `scores`, and `label` BYTES [1]."""
    floor = float(np.finfo(np.float32).tiny)
    logits = np.log(np.maximum(np.array([scores]), floor)).astype(np.float32)
    return {"logits": logits, "label": as_bytes(label)}
