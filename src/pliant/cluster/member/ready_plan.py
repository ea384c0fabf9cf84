"""A plan that a member is ready to run: its model, its partition, its own stages."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, final

from pliant.cluster.member.run_executor import SegmentTask, StageRunner
from pliant.cluster.net.activation_coding import Coding, with_coded_bytes
from pliant.errors import ClusterError
from pliant.ir.capability import Capability
from pliant.ir.partition import Partition
from pliant.ir.program import Program, Segment
from pliant.ir.projection import Projection, project
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import layer_segment, split
from pliant.plan.split.stages import input_part


class StageBuilder(Protocol):
    """Builds a member's own stages of any model."""

    def prepare(self, source: EncoderSource, partition: Partition) -> StageRunner:
        """Return the member's stages of `partition`; takes the time of loading weights and compiling."""

    def replace(self, source: EncoderSource, partition: Partition) -> StageRunner:
        """Return the same after all earlier holders are freed, which must not run any more.

        Weights that the new holder does not need are freed before any are loaded.
        """

    def measure(self, source: EncoderSource, tokens: int, *, is_primary: bool = False) -> Capability:
        """Measure this device's capability for a model, from the stages it would run.

        For a primary, input and head are included.
        """

    def keep(self, runners: Collection[StageRunner]) -> None:
        """Free everything that none of `runners` needs."""


@final
@dataclass(slots=True, eq=False)
class ReadyPlan:
    """Plan `number`. Segment 0 computes the input, segment k + 1 runs layer k, the last one the answer.

    Members run their parts of `program`, which is also the program that is priced.
    """

    number: int
    source: EncoderSource
    partition: Partition
    coding: Coding
    runner: StageRunner
    program: Program = field(init=False)
    _segments: dict[tuple[int, frozenset[str]], tuple[Segment, Projection]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = lower_partition(self.source.spec, self.partition, self.coding)

    @property
    def n_segments(self) -> int:
        return len(self.program.segments)

    def members_without_input(self, before: Partition) -> tuple[str, ...]:
        """Return members that lack part of a layer's input for this plan, after a layer by `before`.

        These are new members, and members that held only rows and now need other rows or heads; never the
        primary.
        """
        spec, found = self.source.spec, []
        for device in set(self.partition.participants) - {self.partition.primary}:
            is_new = device not in before.participants
            held = None if is_new else input_part(spec, before, device)
            needed = input_part(spec, self.partition, device)
            if is_new or (needed is not None and (held is None or not held.covers(needed))):
                found.append(device)
        return tuple(sorted(found))

    def task(
        self,
        name: str,
        epoch: int,
        number: int,
        lacking: Collection[str],
        timeout_s: float,
        lengths: tuple[int, ...] = (),
    ) -> SegmentTask:
        """Return segment `number` for member `name`; devices in `lacking` first receive its input.

        `lengths` are the rows of each of several texts. Raises ClusterError if they are not all rows.
        """
        if lengths and (min(lengths) < 1 or sum(lengths) != self.partition.tokens):
            raise ClusterError(f"texts of {list(lengths)} rows are not the plan's {self.partition.tokens}.")
        key = number, frozenset(lacking)
        if key not in self._segments:
            whole = self.program.segments[number]
            if lacking and 0 < number < self.n_segments - 1:
                entered = layer_segment(self.source.spec, self.partition, number - 1, lacking)
                whole = with_coded_bytes(entered, self.coding)
            self._segments[key] = whole, project(whole, name)
        return SegmentTask(epoch, number, *self._segments[key], self.runner, self.coding, timeout_s, lengths)


@lru_cache(maxsize=256)
def lower_partition(spec: EncoderSpec, partition: Partition, coding: Coding) -> Program:
    """Return a partition's program with activations encoded as `coding`, for pricing and for running."""
    program = split(spec, partition)
    return replace(program, segments=tuple(with_coded_bytes(segment, coding) for segment in program.segments))
