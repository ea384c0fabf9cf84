"""What a program that runs texts without their padding is fed for texts of certain lengths."""

from collections.abc import Sequence
from functools import lru_cache
from typing import final

import numpy as np

from pliant.arrays import Bool, Int64
from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.passes.pack_texts import ROWS, TextShape
from pliant.run.session.ports import Feeds

IS_TOKEN = "texts|is_token"
"""A feed beside the model's own: bool [texts, tokens], what is no padding, which stands behind each text."""

_MOST_LENGTHS = 256


@final
class PackedTexts:
    """The inputs of a packed image, and the shares of its calls, by the lengths of texts."""

    def __init__(self, image: Image, texts: TextShape) -> None:
        self._image, self._texts = image, texts
        self._of = lru_cache(_MOST_LENGTHS)(self._made)

    def of(self, feeds: Feeds) -> tuple[Feeds, int, Int64[np.ndarray, "calls 2"]]:
        """`feeds` with the inputs that say where rows are; the number of rows, and the calls' shares."""
        lengths = tuple(feeds[IS_TOKEN].sum(axis=1).tolist())
        more, shares = self._of(lengths)
        return {**feeds, **more}, sum(lengths), shares

    def _made(self, lengths: tuple[int, ...]) -> tuple[Feeds, Int64[np.ndarray, "calls 2"]]:
        return self._texts.feeds(lengths, self._image.target.isa), self._image.shares(lengths)


def packed_texts(image: Image, texts: TextShape | None) -> PackedTexts | None:
    """Of an image that was packed; None for another."""
    return None if texts is None or ROWS not in image.inputs else PackedTexts(image, texts)


def is_token(lengths: Sequence[int], n_tokens: int) -> Bool[np.ndarray, "texts tokens"]:
    """The feed IS_TOKEN for texts of `lengths`, padded to `n_tokens`."""
    found: np.ndarray = np.arange(n_tokens) < np.asarray(lengths)[:, None]
    return found
