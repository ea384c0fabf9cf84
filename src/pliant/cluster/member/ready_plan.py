"""A plan that a member holds ready to run: its model, its partition, its own stages."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol, final

from pliant.cluster.member.perform import Holder, Turn
from pliant.cluster.net.activation_coding import Coding, as_coded
from pliant.ir.partition import Partition
from pliant.ir.program import Segment
from pliant.ir.projection import Projection, project
from pliant.ir.topology import Capability
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.plan.split.split import closing_segment, layer_segment, opening_segment
from pliant.plan.split.stages import entering


class Hold(Protocol):
    """Builds a member's own stages of any model."""

    def prepare(self, source: EncoderSource, partition: Partition) -> Holder:
        """The member's stages of `partition`; takes as long as loading weights and compiling do."""

    def replace(self, source: EncoderSource, partition: Partition) -> Holder:
        """The same, once all holders before are given up, which must not run any more.

        What they held and the new one does not need is let go of before anything is loaded.
        """

    def measure(self, source: EncoderSource, tokens: int) -> Capability:
        """What this device can do with a model, from the stages it would run."""

    def keep(self, holders: Collection[Holder]) -> None:
        """Let go of what none of `holders` needs."""


@final
@dataclass(slots=True, eq=False)
class ReadyPlan:
    """Plan `number`. Segment 0 makes the input, segment k + 1 runs layer k, the last one makes the answer."""

    number: int
    source: EncoderSource
    partition: Partition
    coding: Coding
    holder: Holder
    _segments: dict[tuple[int, frozenset[str]], tuple[Segment, Projection]] = field(default_factory=dict)

    @property
    def n_segments(self) -> int:
        return self.source.spec.n_layers + 2

    def lacking(self, before: Partition) -> tuple[str, ...]:
        """Who does not hold all that this plan needs of a layer's input, after a layer by `before`.

        New members, and those that had rows alone and have other rows or heads now; never the primary.
        """
        spec, found = self.source.spec, []
        for device in set(self.partition.participants) - {self.partition.primary}:
            is_new = device not in before.participants
            held = None if is_new else entering(spec, before, device)
            needed = entering(spec, self.partition, device)
            if is_new or (needed is not None and (held is None or not held.covers(needed))):
                found.append(device)
        return tuple(sorted(found))

    def turn(self, name: str, epoch: int, number: int, lacking: Collection[str], patience_s: float) -> Turn:
        """Segment `number` as member `name` runs it; devices in `lacking` first receive its input."""
        key = number, frozenset(lacking)
        if key not in self._segments:
            whole = as_coded(self._make(number, key[1]), self.coding)
            self._segments[key] = whole, project(whole, name)
        return Turn(epoch, number, *self._segments[key], self.holder, self.coding, patience_s)

    def _make(self, number: int, lacking: frozenset[str]) -> Segment:
        spec, partition = self.source.spec, self.partition
        if number == 0:
            return opening_segment(spec, partition)
        if number == self.n_segments - 1:
            return closing_segment(spec, partition)
        return layer_segment(spec, partition, number - 1, lacking)
