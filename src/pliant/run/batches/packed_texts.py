"""Extra inputs of a program that runs a batch of texts without computing their padding."""

from functools import lru_cache
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.passes.pack_texts import ROWS, TextShape
from pliant.run.batches.token_feed import IS_TOKEN
from pliant.run.session.ports import Feeds

_MOST_LENGTHS = 256


@final
class PackedTexts:
    """The added inputs of a packed image, and the work shares of its calls, by the lengths of the texts."""

    def __init__(self, image: Image, texts: TextShape) -> None:
        self._image, self._texts = image, texts
        self._cached = lru_cache(_MOST_LENGTHS)(self._make)

    def pack(self, feeds: Feeds) -> tuple[Feeds, int, Int64[np.ndarray, "calls 2"]]:
        """`feeds` with the inputs that locate the rows; the number of rows; the work shares of the calls."""
        lengths = tuple(feeds[IS_TOKEN].sum(axis=1).tolist())
        more, shares = self._cached(lengths)
        return {**feeds, **more}, sum(lengths), shares

    def _make(self, lengths: tuple[int, ...]) -> tuple[Feeds, Int64[np.ndarray, "calls 2"]]:
        return self._texts.feeds(lengths, self._image.target.isa), self._image.shares(lengths)


def make_packed_texts(image: Image, texts: TextShape | None) -> PackedTexts | None:
    """The packed texts of a packed image; None for another image."""
    return None if texts is None or ROWS not in image.inputs else PackedTexts(image, texts)
