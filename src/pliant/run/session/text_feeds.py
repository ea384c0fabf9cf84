"""Text and labels as tensors of requests and answers."""

from collections.abc import Mapping

import numpy as np

from pliant.arrays import Float32
from pliant.errors import InputError

Tensors = Mapping[str, np.ndarray]
_TOKEN_BYTES = 16
"""More than tokens have on average in any text that is one: English has 5."""


def text_of(tensors: Tensors, max_tokens: int) -> str:
    """What `text` BYTES [1] says. Raises InputError where it is not UTF-8, or too long to be cut into tokens.

    Cutting takes time in line with the bytes, however few tokens are read of them.
    """
    content, most = tensors["text"][0], max_tokens * _TOKEN_BYTES
    if len(content) > most:
        raise InputError(
            f"`text` has {len(content)} bytes; at most {most} are read for {max_tokens} tokens. Shorten or "
            "split it."
        )
    try:
        return str(content.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"`text` is not UTF-8 at byte {error.start}.") from error


def as_bytes(text: str) -> np.ndarray:
    """`text` as BYTES [1]."""
    array = np.empty(1, object)
    array[0] = text.encode()
    return array


def classified(logits: Float32[np.ndarray, " labels"], label: str) -> Tensors:
    """`logits` FP32 [1, labels], the model's own, and `label` BYTES [1]."""
    return {"logits": logits[None], "label": as_bytes(label)}
