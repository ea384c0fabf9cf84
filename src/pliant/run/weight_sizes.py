"""Bytes of the weights of images that share equal weights."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.run.memory_use import is_mapped

SMALL_BYTES = 1 << 14
"""Constants up to this size are copied: reading a mapped one makes the 64 KB around it resident."""


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of an image's weights by form; `given` are the arrays of the model, and other sources of forms,
    that are kept in memory, by address.

    Arrays in mapped files do not count: the system reclaims them when memory is short.
    """

    forms: Mapping[Hashable, int]
    given: Mapping[int, int]

    @property
    def form_bytes(self) -> int:
        return sum(self.forms.values())

    @property
    def given_bytes(self) -> int:
        return sum(self.given.values())

    @property
    def n_bytes(self) -> int:
        return self.form_bytes + self.given_bytes


NO_WEIGHTS = WeightSizes({}, {})


def combined(sizes: Iterable[WeightSizes]) -> WeightSizes:
    """The sizes of several images together; shared weights count once."""
    forms: dict[Hashable, int] = {}
    given: dict[int, int] = {}
    for one in sizes:
        forms |= one.forms
        given |= one.given
    return WeightSizes(forms, given)


@final
class GivenArrays:
    """Those of some arrays that take memory of their own: not mapped, and larger than `SMALL_BYTES`.

    An array is among them if it is one of them or a part of one.
    """

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        kept = {a.ctypes.data: a for a in arrays if a.nbytes > SMALL_BYTES and not is_mapped(a)}
        self._starts = sorted(kept)
        self.arrays = [kept[start] for start in self._starts]

    def __contains__(self, array: np.ndarray) -> bool:
        i = bisect_right(self._starts, array.ctypes.data) - 1
        return i >= 0 and array.ctypes.data < self._starts[i] + self.arrays[i].nbytes

    def plus(self, arrays: Iterable[np.ndarray]) -> "GivenArrays":
        """These arrays, and those of `arrays` that are not among them."""
        return GivenArrays([*self.arrays, *(a for a in arrays if a not in self)])
