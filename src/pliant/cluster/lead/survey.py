"""Measure the devices and links of a cluster at its primary's request (Hepti 4.1)."""

from collections.abc import Collection

from pliant.cluster.control.messages import MeasureReply, MeasureRequest
from pliant.cluster.lead.measure_links import measure_links
from pliant.cluster.lead.primary import Primary
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError
from pliant.ir.capability import Capability
from pliant.ir.link import Link
from pliant.models.encoder.encoder_source import EncoderSource


def survey_devices(
    primary: Primary, source: EncoderSource, tokens: int, names: Collection[str]
) -> dict[str, Capability]:
    """Return the capability of each of `names` for a model, measured in turn, without those that fail.

    Raises errors of the primary itself.
    """
    found = {}
    for name in names:
        if name == primary.name:
            found[name] = primary.builder.measure(source, tokens, is_primary=True)
            continue
        epoch = primary.next_epoch()
        primary.send(name, MeasureRequest(epoch, source.identity, tokens, (name,), {}))
        said = primary.collect_measurements(epoch, (name,)).get(name)
        if said is not None and said.device is not None:
            found[name] = said.device.capability()
        else:
            primary.on_event(f"{name} was not measured: {_reason(said)}")
    return found


def survey_links(primary: Primary, names: Collection[str]) -> dict[tuple[str, str], Link]:
    """Return both directions of every pair of `names`, including the primary; failed pairs are missing."""
    epoch = primary.next_epoch()
    others = tuple(sorted(name for name in names if name != primary.name))
    members = primary.name, *others
    rendezvous = primary.connector.rendezvous(members)
    for name in others:
        told = primary.plans.addresses(others, name)
        primary.send(name, MeasureRequest(epoch, None, 0, members, told, rendezvous))
    found: dict[tuple[str, str], Link] = {}
    try:
        primary.connector.join(
            members,
            primary.plans.addresses(others),
            rendezvous,
            lambda: all(map(primary.monitor.is_here, others)),
        )
        found.update(measure_links(primary.comm, members, epoch))  # includes those measured before a failure
    except ClusterError as error:
        primary.on_event(f"not all links were measured: {error}")
        primary.comm.drop(epoch)
        if isinstance(error, PeerLostError | PeerProtocolError):
            primary.monitor.record_failure(error.peer)
    for said in primary.collect_measurements(epoch, others).values():
        found |= {(k.src, k.dst): Link(k.rtt_s / 2, k.bandwidth_Bps) for k in said.links}
    return found


def _reason(said: MeasureReply | None) -> str:
    return "it said nothing" if said is None else said.reason or "it said nothing of itself"
