"""Update the topology of devices and links from the notes of a segment. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.predict import Prediction, link_ratios
from pliant.cluster.watch.adapt import Topology, damp_ratio
from pliant.ir.capability import Capability, Drift, Links, ObservedStage, refresh_capability, refresh_links
from pliant.ir.program import Compute
from pliant.plan.split.split_program import HEAD, INPUT

UnconfirmedRatios = Mapping[tuple[str, str], float]
"""Per stage of a device, or link: the part of the last ratio that is not confirmed yet."""


def update_topology(
    topology: Topology,
    unbelieved: UnconfirmedRatios,
    solved: Prediction,
    notes: Mapping[str, Note],
    offsets_s: Mapping[str, float],
) -> tuple[Topology, UnconfirmedRatios]:
    """Return `topology` updated from the `notes` of a segment, and the ratios that are not confirmed yet.

    `solved` holds what its plan was based on; `offsets_s` holds the lead of each clock. `links` stays the
    same object if the notes say nothing about links. Hepti 4.1: observations of runs replace a second
    profiling pass.
    """
    left = dict(unbelieved)

    def credible(what: tuple[str, str], ratio: float) -> float:
        found = damp_ratio(ratio, left.get(what, 1.0))
        left[what] = ratio / found
        return found

    devices = dict(topology.capabilities)
    for name, note in notes.items():
        device, seen = devices[name], []
        for kind, seconds in note.compute_s.items():
            if kind in (INPUT, HEAD):  # they run once per run and say little about layers
                continue
            work = solved.cost.flops(Compute(kind, device=name))
            expected_s = device.seconds(kind, work)
            if seconds > 0 and expected_s > 0:
                ratio = credible((name, kind), seconds / expected_s)
                seen.append(ObservedStage(kind, work, expected_s * ratio))
        devices[name] = _drifted(device, seen)
    ratios = link_ratios(solved, topology.links, notes, offsets_s)
    links = topology.links
    if ratios:
        slower = {ends: credible(ends, ratio) for ends, ratio in ratios.items()}
        links = refresh_links(links, slower)
    return Topology(devices, links), left


def restore_measured_links(links: Links, measured: Links, names: AbstractSet[str]) -> Links:
    """Return `links`, with those of the devices in `names` as `measured`; absent devices stay absent."""
    known = measured.interfaces
    interfaces = {n: known.get(n, one) if n in names else one for n, one in links.interfaces.items()}
    pairs = {ends: link for ends, link in links.pairs.items() if not names & set(ends)}
    again = {ends for ends in measured.pairs if names & set(ends) and interfaces.keys() >= set(ends)}
    pairs |= {ends: measured.pairs[ends] for ends in again}
    return Links(interfaces, links.latency_s, pairs)


def _drifted(device: Capability, seen: Sequence[ObservedStage]) -> Capability:
    """Return `refresh_capability`; kinds of stages that did not run, e.g. of another mode, get the overall
    drift.
    """
    after = refresh_capability(device, seen)
    before_s = sum(device.seconds(s.kind, s.flops) for s in seen)
    if before_s <= 0:
        return after
    ratio = sum(after.seconds(s.kind, s.flops) for s in seen) / before_s
    known = {curve.kind for curve in device.curves} | {drift.kind for drift in device.drifts}
    drifts = {kind: device.drift(kind) * ratio for kind in sorted(known)}
    drifts |= {s.kind: after.drift(s.kind) for s in seen}
    return replace(after, drifts=tuple(Drift(kind, factor) for kind, factor in drifts.items()))
