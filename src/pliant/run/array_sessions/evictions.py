"""Warn once when a compiled image that was evicted has to be compiled again."""

import warnings
from collections.abc import Hashable
from typing import final

_REMEMBERED = 1024
"""Evicted images whose keys' hashes are kept, 64 KB; older ones are forgotten."""


@final
class Evictions:
    """The images that a session with room for `images`, in `memory_bytes`, evicted.

    The owner serialises calls.
    """

    def __init__(self, images: int, memory_bytes: int | None = None) -> None:
        limit = larger = ""
        if memory_bytes is not None:
            limit = f", within {memory_bytes} bytes of memory"
            larger = "Give more memory by `--memory`, in Python `memory=`. "
        self._why = (
            f"only the last {images} are kept{limit}. {larger}In Python, pliant.compile also has `images=` "
            "to keep more, and `buckets=` to pad inputs to a few sizes."
        )
        self._hashes: dict[int, None] = {}
        self._is_warned = False

    def add(self, key: Hashable) -> None:
        """Record an evicted image."""
        self._hashes[hash(key)] = None
        if len(self._hashes) > _REMEMBERED:
            del self._hashes[next(iter(self._hashes))]

    def warn(self, key: Hashable, source: str) -> None:
        """Issue a UserWarning if the image that was just compiled had been evicted, the first time only."""
        if self._is_warned or hash(key) not in self._hashes:
            return
        self._is_warned = True
        warnings.warn(
            f"{source} is compiled again for shapes it was compiled for before, since {self._why}",
            UserWarning,
            stacklevel=2,
        )
