"""Predict the time of a partition by the cost model, with links corrected by observed runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pliant.cluster.control.messages import Note
from pliant.cluster.member.ready_plan import lower_partition
from pliant.cluster.net.activation_coding import Coding, scale_links
from pliant.cluster.watch.adapt import Topology, is_kept, is_more_precise, is_worthwhile
from pliant.ir.capability import ClusterCost, Links
from pliant.ir.cost import Span, latency, simulate
from pliant.ir.partition import Partition
from pliant.ir.program import Exchange, Program, value
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.flat_solver import FEW
from pliant.plan.partition.lower_bound import layer_bound_s
from pliant.plan.partition.problem import pose
from pliant.plan.split.stage_graphs import work_flops

MOST_AT_ONCE = 4.0
"""Maximum factor by which one layer may change a link's estimate."""


@dataclass(frozen=True)
class Prediction:
    """A partition, its inputs, and its predicted time: of one `layer`, and on request of all segments."""

    partition: Partition
    topology: Topology
    program: Program
    layer: Program
    layer_s: float
    cost: ClusterCost
    byte_s: Mapping[tuple[str, str], float]
    is_due: bool = False
    """Whether the search for a better partition was postponed."""

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The spans of all segments."""
        return simulate(self.program, self.cost)

    @property
    def seconds(self) -> float:
        return latency(self.spans)


def predict(
    spec: EncoderSpec, partition: Partition, topology: Topology, coding: Coding = "fp32"
) -> Prediction:
    """Predict a partition's time by the shared cost model, with activations encoded as `coding`."""
    cost = ClusterCost(topology.capabilities, topology.links, work_flops(spec, partition))
    program = lower_partition(spec, partition, coding)
    layer = replace(program, segments=program.segments[1:2])
    return Prediction(partition, topology, program, layer, _layer_s(layer, cost), cost, _byte_s(layer, cost))


def repredict(solved: Prediction, topology: Topology) -> Prediction:
    """Return `predict`'s result for the same partition and another topology, in less time."""
    cost = replace(solved.cost, capabilities=topology.capabilities, links=topology.links)
    layer_s, byte_s = _layer_s(solved.layer, cost), _byte_s(solved.layer, cost)
    return replace(solved, topology=topology, layer_s=layer_s, cost=cost, byte_s=byte_s)


def layer_seconds(solved: Prediction, topology: Topology) -> float:
    """Return the time of one layer of a partition by another topology; faster than `predict`."""
    cost = ClusterCost(topology.capabilities, topology.links, solved.cost.flops)
    return _layer_s(solved.layer, cost)


def is_search_futile(spec: EncoderSpec, solved: Prediction, n_layers: int, coding: Coding = "fp32") -> bool:
    """Return whether no partition is worth a switch from that of `solved` for `n_layers` more layers.

    Determined by a lower bound on every partition's layer time, without a search, which would give the same
    result. For many devices it returns False: there the bound is loose, and takes as long as a search.
    """
    devices, partition = solved.topology.capabilities, solved.partition
    if len(devices) > FEW:
        return False
    links = scale_links(solved.topology.links, coding)
    least_s = layer_bound_s(pose(spec, partition.tokens, devices, links, partition.primary))
    return not is_worthwhile(solved.layer_s, least_s, n_layers, 0.0, 0.0)


def is_next(now: Prediction, new: Prediction) -> bool:
    """Return whether the next run takes the plan of `new` in place of that of `now`.

    Both are predicted by one topology; the weights of `new` may load before that run. More precise weights,
    for which memory suffices now, are taken whatever the times, which do not depend on bits.
    """
    is_home = new.partition.participants == (new.partition.primary,)
    is_quicker = not is_kept(now.layer_s, new.layer_s, is_home=is_home)
    return is_quicker or is_more_precise(new.partition.bits, now.partition.bits)


def link_ratios(
    solved: Prediction, links: Links, notes: Mapping[str, Note], offsets_s: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """Return the ratio of observed to expected transfer time of each pair, with `links` as known now.

    `solved` holds the expected time per byte for its own links, `offsets_s` the lead of each member's clock,
    which is in the time of each message; a note without their number counts as of one.
    One observation is limited to a factor of MOST_AT_ONCE: a stall does not mean a slow link.
    """
    then, found = solved.topology.links, {}
    for dst, note in notes.items():
        for src, (n_bytes, seconds) in note.arrived.items():
            if src not in links.interfaces or (src, dst) not in solved.byte_s:
                continue
            moved = then.link(src, dst).bandwidth_Bps / links.link(src, dst).bandwidth_Bps
            predicted_s = n_bytes * solved.byte_s[src, dst] * moved
            ahead_s = offsets_s.get(dst, 0.0) - offsets_s.get(src, 0.0)
            took_s = seconds - note.n_arrived.get(src, 1) * ahead_s
            if predicted_s > 0 and took_s > 0:
                found[src, dst] = min(max(took_s / predicted_s, 1 / MOST_AT_ONCE), MOST_AT_ONCE)
    return found


def _layer_s(layer: Program, cost: ClusterCost) -> float:
    """Return the time of one more layer, which a device begins when it has ended the previous one."""
    two = replace(layer, segments=layer.segments * 2)
    return latency(simulate(two, cost)) - latency(simulate(layer, cost))


def _byte_s(layer: Program, cost: ClusterCost) -> dict[tuple[str, str], float]:
    """Return the seconds per byte of each pair in a layer, with all concurrent work."""
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for step, span in zip(layer.steps, simulate(layer, cost), strict=True):
        if isinstance(step.work, Exchange):
            pair = step.work.src, step.work.dst
            n_bytes, seconds = totals.get(pair, (0, 0.0))
            totals[pair] = n_bytes + value(step.work.n_bytes, {}), seconds + span.seconds
    return {pair: seconds / n_bytes for pair, (n_bytes, seconds) in totals.items() if n_bytes}
