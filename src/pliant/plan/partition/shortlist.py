"""Choose from very many devices those worth a share of a partition; report the others."""

from collections.abc import Mapping

from pliant.ir.capability import Capability, Links
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.sizes import ITEMSIZE, LayerSizes, layer_sizes

MAX_DEVICES = 24
"""A model has about 16 heads to share, and each further device with rows saves little."""


def shortlist(
    spec: EncoderSpec,
    tokens: int,
    capabilities: Mapping[str, Capability],
    links: Links,
    primary: str,
    most: int = MAX_DEVICES,
    bits: tuple[int, ...] = (),
) -> dict[str, Capability]:
    """Return at most `most` devices, in order: the primary, the fastest alone, the best for heads and rows.

    All devices if there are no more. Ranks count a device's work and its own transfers, but no partner: an
    excluded device might have been worth a share, but the fastest single device is always included.
    """
    if len(capabilities) <= most:
        return dict(capabilities)
    s = layer_sizes(spec, tokens, bits)
    ranks: list[dict[str, float]] = [{}, {}, {}]
    for name, device in capabilities.items():
        for rank, seconds in zip(ranks, _prices_s(s, device, links, name, primary), strict=True):
            rank[name] = seconds
    alone, *others = (sorted(rank, key=lambda name: rank[name]) for rank in ranks)
    kept = {primary, alone[0]}
    for pair in zip(*others, strict=True):
        for name in pair:
            if len(kept) < most:
                kept.add(name)
    return {name: device for name, device in capabilities.items() if name in kept}


def _prices_s(
    s: LayerSizes, device: Capability, links: Links, name: str, primary: str
) -> tuple[float, float, float]:
    """Return seconds alone (infinite without memory), of 1/16 of the heads, and of 1/16 of the rows."""
    x_bytes = ITEMSIZE * s.hidden * s.rows
    heads, rows = max(1, s.n_heads // 16), max(1, s.rows // 16)
    interface = links.interfaces[name]
    whole = s.ws_row + s.ws_head.fixed + s.ws_head.each * s.n_heads
    layer_s = device.seconds("attend", s.attend.fixed + s.attend.each * s.n_heads)
    layer_s += device.seconds("rest", s.rest.each * s.rows)
    back_s = 0.0
    alone_s = layer_s if device.free_bytes >= whole else float("inf")
    if name != primary:
        back_s = links.link(name, primary).seconds(x_bytes)
        alone_s += links.link(primary, name).seconds(x_bytes) + back_s
    alone_s += (s.n_layers - 1) * max(layer_s, back_s)  # x returns during the next layer
    heads_s = device.seconds("attend", s.attend.fixed + s.attend.each * heads)
    rows_s = device.seconds("rest", s.rest.each * rows)
    return (
        alone_s,
        heads_s + x_bytes / interface.ingress_Bps,
        rows_s + 4 * x_bytes * rows / s.rows / interface.egress_Bps,
    )
