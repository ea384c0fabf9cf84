"""Bytes of the weights of images that share equal weights."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of an image's weights by form; `given` are their source arrays that are kept in memory.

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
