"""Open a model as one session over this device, a cluster and upstream nodes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import Source, resolve
from pliant.errors import BudgetError, ClusterError
from pliant.quantities import parse_seconds
from pliant.route.choice.request_terms import Terms
from pliant.run.process_memory import MemoryBudget
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
    `memory` (for each of the two), `dilation` and `cache`, and closes it with the session. In a shared
    budget its weights on this device are reserved (`reserve_weights`) for as long as it is open.
    Raises PliantError as `pliant.open` and `Cluster` do, and NodeError for invalid upstream addresses.
    """
    terms = Terms(None if latency is None else parse_seconds(latency), best_effort=best_effort)
    with ExitStack() as stack:
        local = open_endpoint(source, **options)
        stack.callback(local.close)
        shared: Session[Any] | None = None
        owned = stack.enter_context(ExitStack())
        if cluster is not None:
            if isinstance(cluster, str):
                from pliant.api.member_options import reserve_weights  # needs pyzmq; upstreams do not
                from pliant.api.open_cluster import Cluster

                own = {k: options[k] for k in ("threads", "memory", "dilation", "cache") if k in options}
                if isinstance(budget := own.get("memory"), MemoryBudget):
                    reserved = reserve_weights(budget, resolve(source), None, own.get("cache"))
                    own["memory"] = owned.enter_context(reserved).n_bytes
                cluster = owned.enter_context(Cluster(cluster, **own))
            shared = cluster.open(source)  # type: ignore[arg-type]
            with suppress(BudgetError, ClusterError):  # out of reach until workers come; the levels say why
                shared.look_again()  # measures the devices before the first request
        session = RoutedSession(local, shared, upstreams, terms, routing or Routing(), owned)
        stack.pop_all()
    return session
