"""Open a model as one session over this device, a cluster and upstream nodes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import Source
from pliant.quantities import parse_seconds
from pliant.route.choice.request_terms import Terms
from pliant.run.session.session import Session
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import Routing

if TYPE_CHECKING:
    from pliant.api.open_cluster import Cluster


def open_routed(
    source: Source,
    latency: str | float | None,
    best_effort: bool,
    cluster: "str | Cluster | None",
    upstreams: Sequence[str],
    routing: Routing | None,
    options: Mapping[str, Any],
) -> RoutedSession:
    """Open `source` over this device, a cluster and upstreams; `options` are those of the local session.

    If `cluster` is an address, this process leads the cluster, with the default key and the same `threads`,
    `memory` (for each of the two), `dilation` and `cache`, and closes it with the session.
    Raises PliantError as `pliant.open` and `Cluster` do, and NodeError for invalid upstream addresses.
    """
    terms = Terms(None if latency is None else parse_seconds(latency), best_effort=best_effort)
    with ExitStack() as stack:
        local = open_endpoint(source, **options)
        stack.callback(local.close)
        shared: Session[Any] | None = None
        owned = ExitStack()
        if cluster is not None:
            if isinstance(cluster, str):
                from pliant.api.open_cluster import Cluster  # needs pyzmq; upstreams do not

                own = {k: options[k] for k in ("threads", "memory", "dilation", "cache") if k in options}
                cluster = owned.enter_context(Cluster(cluster, **own))
            stack.push(owned)
            shared = cluster.open(source)  # type: ignore[arg-type]
            shared.curve()  # measures the devices before the first request
        session = RoutedSession(local, shared, upstreams, terms, routing or Routing(), owned)
        stack.pop_all()
    return session
