"""Choose the models to evict to make room for another one: the least recently used."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class EvictableModel(Generic[K]):
    """A loaded model that may be evicted, which frees `frees_bytes`.

    Its last request was at `last_used_s`.
    """

    key: K
    frees_bytes: int
    last_used_s: float


def choose_evictions(loaded: Sequence[EvictableModel[K]], short_bytes: int) -> tuple[K, ...] | None:
    """The models to evict so that `short_bytes` more are free, the least recently used first.

    Returns None if evicting all of them frees less. A model stays if those used before it free enough without
    it: of all sufficient sets, the result is the one whose latest use is earliest, then the one whose second
    latest use is earliest, and so on. Of models with the same last use, the later in `loaded` stays.
    """
    by_use = sorted(loaded, key=lambda one: one.last_used_s)
    left = sum(max(one.frees_bytes, 0) for one in by_use)
    if left < short_bytes:
        return None
    evicted = []
    for one in reversed(by_use):
        left -= max(one.frees_bytes, 0)
        if left < short_bytes:
            evicted.append(one)
            short_bytes -= one.frees_bytes
    return tuple(one.key for one in reversed(evicted))
