"""Predict the time of a partition by the cost model, with links corrected by what runs showed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pliant.cluster.control.messages import Note
from pliant.cluster.member.ready_plan import lowered
from pliant.cluster.net.activation_coding import Coding, as_coded_links
from pliant.cluster.watch.adapt import Picture, pays
from pliant.ir.cost import Span, latency, simulate
from pliant.ir.partition import Partition
from pliant.ir.program import Exchange, Program, value
from pliant.ir.topology import ClusterCost, Links
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.flat_solver import FEW
from pliant.plan.partition.lower_bound import layer_bound_s
from pliant.plan.partition.problem import pose
from pliant.plan.split.stage_graphs import work_flops

MOST_AT_ONCE = 4.0
"""How many times slower or faster one layer may show a link to be."""


@dataclass(frozen=True)
class Solved:
    """A partition, what it was made of, and what it should take: one `layer`, and when asked all segments."""

    partition: Partition
    picture: Picture
    program: Program
    layer: Program
    layer_s: float
    cost: ClusterCost
    byte_s: Mapping[tuple[str, str], float]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Of all segments."""
        return simulate(self.program, self.cost)

    @property
    def seconds(self) -> float:
        return latency(self.spans)


def predict(spec: EncoderSpec, partition: Partition, picture: Picture, coding: Coding = "fp32") -> Solved:
    """What a partition should take, by the one cost model, with activations that travel as `coding`."""
    cost = ClusterCost(picture.capabilities, picture.links, work_flops(spec, partition))
    program = lowered(spec, partition, coding)
    layer = replace(program, segments=program.segments[1:2])
    return Solved(partition, picture, program, layer, _layer_s(layer, cost), cost, _byte_s(layer, cost))


def by_picture(solved: Solved, picture: Picture) -> Solved:
    """What `predict` says of the same partition by another picture, in less time."""
    cost = replace(solved.cost, capabilities=picture.capabilities, links=picture.links)
    layer = solved.layer
    return Solved(
        solved.partition, picture, solved.program, layer, _layer_s(layer, cost), cost, _byte_s(layer, cost)
    )


def layer_seconds(solved: Solved, picture: Picture) -> float:
    """What one layer of a partition should take by another picture; `predict` says more, for longer."""
    cost = ClusterCost(picture.capabilities, picture.links, solved.cost.flops)
    return _layer_s(solved.layer, cost)


def is_in_vain(spec: EncoderSpec, solved: Solved, n_layers: int, coding: Coding = "fp32") -> bool:
    """Whether no partition by its picture is worth a switch from that of `solved` for `n_layers` more layers.

    A lower bound on every partition's layer tells so without a search, which would come to the same. Of many
    devices it says nothing: there the bound is far off, and takes as long as a search.
    """
    devices, partition = solved.picture.capabilities, solved.partition
    if len(devices) > FEW:
        return False
    links = as_coded_links(solved.picture.links, coding)
    least_s = layer_bound_s(pose(spec, partition.tokens, devices, links, partition.primary))
    return not pays(solved.layer_s, least_s, n_layers, 0.0, 0.0)


def link_ratios(
    solved: Solved, links: Links, notes: Mapping[str, Note], offsets_s: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """How many times longer than by `links`, as they are known now, the bytes of each pair took.

    `solved` says what a byte should have taken when links were as they were for it, `offsets_s` what each
    member's clock is ahead. One observation counts for MOST_AT_ONCE at most: a stall is no slow link.
    """
    then, found = solved.picture.links, {}
    for dst, note in notes.items():
        for src, (n_bytes, seconds) in note.arrived.items():
            if src not in links.interfaces or (src, dst) not in solved.byte_s:
                continue
            moved = then.link(src, dst).bandwidth_Bps / links.link(src, dst).bandwidth_Bps
            predicted_s = n_bytes * solved.byte_s[src, dst] * moved
            took_s = seconds - offsets_s.get(dst, 0.0) + offsets_s.get(src, 0.0)
            if predicted_s > 0 and took_s > 0:
                found[src, dst] = min(max(took_s / predicted_s, 1 / MOST_AT_ONCE), MOST_AT_ONCE)
    return found


def _layer_s(layer: Program, cost: ClusterCost) -> float:
    """What one layer more takes: it begins where a device has ended the one before."""
    two = replace(layer, segments=layer.segments * 2)
    return latency(simulate(two, cost)) - latency(simulate(layer, cost))


def _byte_s(layer: Program, cost: ClusterCost) -> dict[tuple[str, str], float]:
    """Seconds a byte of each pair in a layer, with all that goes on beside it."""
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for step, span in zip(layer.steps, simulate(layer, cost), strict=True):
        if isinstance(step.work, Exchange):
            pair = step.work.src, step.work.dst
            n_bytes, seconds = totals.get(pair, (0, 0.0))
            totals[pair] = n_bytes + value(step.work.n_bytes, {}), seconds + span.seconds
    return {pair: seconds / n_bytes for pair, (n_bytes, seconds) in totals.items() if n_bytes}
