"""Partitions that a search found lately, for inputs of about that length: it takes as long as a short run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from pliant.cluster.watch.adapt import Picture, reason_to_solve, recovered
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import weight_bytes

_NEAR = 1.25
"""Lengths that differ by more are searched for themselves."""
_FRESH_S = 10.0
"""For so long a partition stands: what a split has to save is learned meanwhile."""
_MOST = 16


@dataclass(frozen=True, slots=True)
class _Found:
    spec: EncoderSpec
    partition: Partition
    picture: Picture
    need: Mapping[str, int]
    found_s: float

    def is_near(self, tokens: int, now_s: float) -> bool:
        """Whether it is of about that length, and of late."""
        before = self.partition.tokens
        return max(before, tokens) <= _NEAR * min(before, tokens) and now_s - self.found_s <= _FRESH_S

    def holds(self, picture: Picture) -> bool:
        """Whether nothing changed since it was found that a search would look at."""
        participants = self.partition.participants
        reason = reason_to_solve(self.picture, picture, participants, self.need)
        return reason is None and not recovered(self.picture, picture, participants)


@final
class FoundPartitions:
    """The latest ones, of all models; moments are of any one clock. Threads may share it."""

    def __init__(self) -> None:
        self._found: tuple[_Found, ...] = ()

    def of(
        self,
        spec: EncoderSpec,
        tokens: int,
        picture: Picture,
        now_s: float,
        search: Callable[[], Partition],
    ) -> Partition:
        """The latest for about so many tokens, its rows in proportion; where there is none, by `search`.

        That is also where a search by `picture` might find another than before: devices came or left, are
        slower, or quicker without a part in it, or have too little memory.
        """
        for one in reversed(self._found):
            if one.spec == spec and one.is_near(tokens, now_s) and one.holds(picture):
                return one.partition.resized(tokens)
        partition = search()
        found = _Found(spec, partition, picture, weight_bytes(spec, partition), now_s)
        self._found = (*self._found, found)[-_MOST:]
        return partition

    def clear(self) -> None:
        """What comes is searched for anew."""
        self._found = ()
