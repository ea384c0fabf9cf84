"""Text and labels as tensors of requests and answers."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pliant.arrays import Float32
from pliant.errors import InputError

AnswerArrays = Mapping[str, np.ndarray]
_TOKEN_BYTES = 16
"""Upper bound of the average bytes per token of real text; English has 5."""


class TextReader(Protocol):
    """How the texts for a model become its inputs."""

    @property
    def max_tokens(self) -> int: ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without padding. Raises InputError as `feeds` does."""
        ...

    def feeds(self, text: str, pair: str | None = None) -> dict[str, np.ndarray]:
        """The inputs by name, of one row each. Raises InputError for a text that the model cannot read."""
        ...


def text_of(tensors: Mapping[str, Any], max_tokens: int) -> str:
    """The string in the tensor `text`: BYTES [1], a str, or a list of one of these.

    Raises InputError for anything else, for bytes that are not UTF-8, and for a text that is too long to
    tokenise: the time of tokenising is proportional to the bytes, however few tokens are used.
    """
    given = np.asarray(tensors["text"], object)
    if given.shape not in ((), (1,)):
        raise InputError(f"`text` is {list(given.shape)}; give [1], one text. A call takes a list of texts.")
    content, most = given.item(), max_tokens * _TOKEN_BYTES
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, bytes):
        raise InputError(f"`text` is of type {type(content).__name__}; give a str, or bytes in UTF-8.")
    if len(content) > most:
        raise InputError(
            f"`text` has {len(content)} bytes; at most {most} are read for {max_tokens} tokens. Shorten or "
            "split it."
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"`text` is not UTF-8 at byte {error.start}.") from error


def as_bytes(text: str) -> np.ndarray:
    """`text` as BYTES [1]."""
    array = np.empty(1, object)
    array[0] = text.encode()
    return array


def classifier_outputs(logits: Float32[np.ndarray, " labels"], label: str) -> AnswerArrays:
    """`logits` FP32 [1, labels], the model's own, and `label` BYTES [1]."""
    return {"logits": logits[None], "label": as_bytes(label)}
