"""Choose the models that leave memory, so that another one fits: those least recently used."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Evictable(Generic[K]):
    """A model in memory that may leave it: `frees_bytes` are free then; it was asked at `last_used_s`."""

    key: K
    frees_bytes: int
    last_used_s: float


def choose_evictions(loaded: Sequence[Evictable[K]], short_bytes: int) -> tuple[K, ...] | None:
    """The models to evict so that `short_bytes` more are free, the least recently used first.

    None where all of them together free less. A model stays wherever those that were used before it free
    enough without it: of all sets that are sufficient this is the one whose latest use is earliest, then the
    one whose second latest use is, and so on; of models used at one time the later in `loaded` stays.
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
