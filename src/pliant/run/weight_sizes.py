"""Bytes of the weights of images that share what they have in common."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of an image's weights by form; `given` are arrays they come from that are kept in memory.

    What lies in a mapped file counts as nothing: the system takes it back when memory is short.
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
    """Of images that share what they have in common."""
    forms: dict[Hashable, int] = {}
    given: dict[int, int] = {}
    for one in sizes:
        forms |= one.forms
        given |= one.given
    return WeightSizes(forms, given)
