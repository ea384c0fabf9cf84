"""`pliant.ray.Deployment`: a node as a Ray Serve deployment, routed by the latency of its replicas."""

from collections.abc import Callable, Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.context import ReplicaContext
from starlette.types import ASGIApp

from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import Source
from pliant.errors import BudgetError, NodeError
from pliant.ray.assigned_threads import assigned_threads
from pliant.ray.handle_call import CallInputs, read_call, write_call
from pliant.ray.replica_advert import advert_of, input_size
from pliant.ray.replica_options import replica_options
from pliant.route.choice.request_terms import Terms
from pliant.serve.access.access import AccessControl
from pliant.serve.http.http_app import make_app
from pliant.serve.node.start_node import LENGTHS, NodeOptions, make_node

QUEUE = 64
"""Requests that may wait at a replica, unless the deployment has another `max_ongoing_requests`."""
_LEARN_S = 1.0
_STATS_S = 1.0

PerReplica = Callable[[ReplicaContext], Mapping[str, Any]]


class Replica:
    """A model that a Ray Serve replica opens and serves over HTTP and through deployment handles.

    `source` and `options` are those of `pliant.open`, as a node opens them: a text encoder keeps 100 MB of
    weights unless `preload` or `memory` bounds it. `per_replica` returns further options for one replica,
    given its Serve context: `lambda context: {"memory": ...}` for unequal devices. `threads` defaults to the
    CPUs that Ray assigned.

    `latency` and `accuracy_floor` are the defaults of requests that set no terms, as with `pliant node`. At
    most `queue` requests wait, by default one less than the deployment's `max_ongoing_requests`; further ones
    are refused (503). Over HTTP a replica serves the paths of a node (docs/nodes.md). Raises PliantError as
    `pliant.open` does, InputError for a longer queue, and NodeError for a floor that no submodel reaches.
    """

    def __init__(
        self,
        source: Source,
        *,
        latency: str | float | None = None,
        accuracy_floor: float | None = None,
        queue: int | None = None,
        per_replica: PerReplica | None = None,
        **options: Any,
    ) -> None:
        context = serve.get_replica_context()
        common = {**options, "latency": latency, "accuracy_floor": accuracy_floor, "queue": queue}
        own = {} if per_replica is None else per_replica(context)
        n_sent = context._deployment_config.max_ongoing_requests  # noqa: SLF001 - Ray has no public name
        found = replica_options(common, own, n_sent)
        threads = assigned_threads(found.opening.get("threads"))
        session = open_endpoint(source, **{**found.opening, "threads": threads})
        floor = found.terms.accuracy_floor
        try:
            session.curve(floor or 0.0)
        except BudgetError as error:
            raise NodeError(f"no request could have a floor of {floor}: {error}") from error
        name = f"replica-{context.replica_id.unique_id}"
        self._node = make_node(NodeOptions(name=name, terms=found.terms, queue=found.queue), session)
        self._node.local.learn(LENGTHS, _LEARN_S)
        self._size = input_size(session)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Serve after the replica is constructed."""
        from pliant import __version__

        return make_app(self._node, AccessControl(), __version__)

    async def answer(
        self,
        inputs: CallInputs,
        *,
        deadline_s: float | None = None,
        accuracy_floor: float | None = None,
        best_effort: bool | None = None,
    ) -> dict[str, Any]:
        """Return the outputs for a text, or for feeds by name, and the `parameters` of the response.

        `handle.answer.remote("a fine film").result()["label"]`. Raises a node's refusals as PliantError.
        """
        model = self._node.signature
        call = write_call(inputs, Terms(deadline_s, accuracy_floor, best_effort), model)
        return read_call(await self._node.infer(call), model)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return the advert that routers get when the replica is ready."""
        return advert_of(self._node.served, self._size).encode()

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the advert that routers get once a second afterwards."""
        return advert_of(self._node.served, self._size).encode()

    def __del__(self) -> None:
        node = getattr(self, "_node", None)
        if node is not None:
            node.close()


Deployment = serve.deployment(
    name="pliant",
    max_ongoing_requests=QUEUE + 1,
    request_router_config=RequestRouterConfig(
        request_router_class="pliant.ray.request_router.CurveRouter",
        request_routing_stats_period_s=_STATS_S,
    ),
)(serve.ingress()(Replica))
"""`Replica` as a deployment: `serve.run(Deployment.options(num_replicas=2).bind("sst2"))`."""
