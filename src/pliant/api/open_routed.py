"""Open a model behind one deadline: here, over a cluster, and on nodes above."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import Source
from pliant.quantities import parse_seconds
from pliant.route.choice.terms import Terms
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
    """The session of `source` over this device, a cluster and upstreams; `options` are of the local session.

    A cluster given by its address is led by this process, with the default key and the same `threads`,
    `memory` (of each of the two), `dilation` and `cache`, and closed with the session.
    Raises PliantError: of `pliant.open`, `Cluster`, and NodeError for upstreams that are no addresses.
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
            shared.curve()  # measures the devices, before anybody asks
        session = RoutedSession(local, shared, upstreams, terms, routing or Routing(), owned)
        stack.pop_all()
    return session
