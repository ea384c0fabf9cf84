"""Extra inputs of a program that runs a batch of texts without computing their padding."""

from collections.abc import Sequence
from functools import lru_cache
from typing import final

import numpy as np

from pliant.arrays import Bool, Int64
from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.passes.pack_texts import ROWS, TextShape
from pliant.run.session.ports import Feeds

IS_TOKEN = "texts|is_token"
"""A feed added to the model's own: bool [texts, tokens], True for tokens and False for the padding behind
each text.
"""

_MOST_LENGTHS = 256


@final
class PackedTexts:
    """The added inputs of a packed image, and the work shares of its calls, by the lengths of the texts."""

    def __init__(self, image: Image, texts: TextShape) -> None:
        self._image, self._texts = image, texts
        self._of = lru_cache(_MOST_LENGTHS)(self._made)

    def of(self, feeds: Feeds) -> tuple[Feeds, int, Int64[np.ndarray, "calls 2"]]:
        """`feeds` with the inputs that locate the rows; the number of rows; the work shares of the calls."""
        lengths = tuple(feeds[IS_TOKEN].sum(axis=1).tolist())
        more, shares = self._of(lengths)
        return {**feeds, **more}, sum(lengths), shares

    def _made(self, lengths: tuple[int, ...]) -> tuple[Feeds, Int64[np.ndarray, "calls 2"]]:
        return self._texts.feeds(lengths, self._image.target.isa), self._image.shares(lengths)


def packed_texts(image: Image, texts: TextShape | None) -> PackedTexts | None:
    """The packed texts of a packed image; None for another image."""
    return None if texts is None or ROWS not in image.inputs else PackedTexts(image, texts)


def is_token(lengths: Sequence[int], n_tokens: int) -> Bool[np.ndarray, "texts tokens"]:
    """The feed IS_TOKEN for texts of `lengths`, padded to `n_tokens`."""
    found: np.ndarray = np.arange(n_tokens) < np.asarray(lengths)[:, None]
    return found
