"""The gauges of a node for Prometheus, read from its router and endpoints."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pliant.serve.answers.metrics import GaugeValue

if TYPE_CHECKING:
    from pliant.serve.node.serving_node import ServingNode


def read_gauges(node: "ServingNode") -> Iterator[GaugeValue]:
    """Yield the gauges of `node` now."""
    now_s = node.clock()
    for n, seconds in node.router.advertise(now_s).levels[-1].answered_points:
        yield GaugeValue("pliant_curve_seconds", "Curve sent to downstream nodes.", "length", str(n), seconds)
    for target, local in node.dispatcher.here.items():
        n, about = float(local.n_waiting), "Requests that wait for a local endpoint."
        yield GaugeValue("pliant_queue_length", about, "target", target, n)
        about = "Expected wait of a new request, in seconds."
        yield GaugeValue("pliant_queue_seconds", about, "target", target, local.backlog_s)
    for peer in node.router.states(now_s):
        rows = [
            ("pliant_upstream_rtt_seconds", "Round trip time.", peer.rtt_s),
            ("pliant_upstream_bandwidth_bytes", "Bandwidth, in bytes a second.", peer.bandwidth_Bps),
            ("pliant_upstream_ready", "Whether the upstream is used.", float(peer.state == "ready")),
            ("pliant_upstream_wait_seconds", "Expected wait at the upstream.", peer.wait_s),
            ("pliant_upstream_in_flight", "Requests in flight there.", float(peer.n_in_flight)),
            ("pliant_upstream_limit", "Maximum requests in flight.", float(peer.limit)),
            ("pliant_upstream_waiting", "Requests that wait here for it.", float(peer.n_waiting)),
        ]
        for name, about, number in rows:
            yield GaugeValue(name, about, "upstream", peer.name, number)
    if (share := node.share) is not None:
        rows = [
            ("pliant_memory_share_bytes", "Share of the common memory budget.", share.share_bytes),
            ("pliant_memory_held_bytes", "Memory held of the share.", share.held_bytes),
            ("pliant_memory_loading_seconds", "Loading time of an answer.", share.loading_s),
        ]
        for name, about, number in rows:
            yield GaugeValue(name, about, "model", share.name, number)
    yield GaugeValue(
        "pliant_predecessors", "Downstream nodes.", "node", node.name, len(node.router.predecessors)
    )
