"""A request router for Ray Serve: sends each request to the replica with the earliest expected completion."""

import asyncio
import pickle
from collections.abc import Mapping
from typing import Any, final

from ray.exceptions import RayError
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pliant.ray.handle_call import call_bytes
from pliant.ray.in_flight_requests import InFlightRequests
from pliant.ray.replica_advert import ReplicaAdvert, decode_advert
from pliant.ray.replica_result import RetryingReplica

_LOOK_S = 0.5
"""Maximum age of the count of other routers' requests before it is refreshed."""
_ANSWER_S = 5.0
_INFER = "/infer"


@final
class CurveRouter(RequestRouter):  # type: ignore[misc]  # mypy skips Ray
    """Routes by expected seconds instead of request counts, since replicas may run on unequal devices.

    A replica advertises its model's latency by input length when it is ready and once a second
    (`replica_advert.py`). The overhead beyond that, from Ray and from other load on the machine, is learned
    from completion times (`in_flight_requests`). A replica's queue is the requests that this router has in
    flight there, plus those of other routers, from the count that the replica returns with every request. A
    replica without an advert is tried first. If the best replica has no room, the next best is tried; if none
    has, Serve retries after its back-off.
    """

    def initialize_state(self, **_: Any) -> None:
        """Called by Serve before the first request."""
        self._in_flight: InFlightRequests[ReplicaID] = InFlightRequests()
        self._adverts: dict[ReplicaID, tuple[Mapping[str, Any], ReplicaAdvert | None]] = {}
        self._ongoing: dict[ReplicaID, tuple[int, float]] = {}
        self._asked: dict[ReplicaID, asyncio.Task[None]] = {}
        self._lost: set[str] = set()

    def create_replica_wrapper(self, replica_info: Any) -> RetryingReplica:
        """Called by Serve for each new replica."""
        return RetryingReplica(replica_info, self, self._lost)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas by the expected completion of the request; each replica is a rank of its own."""
        now_s = self._get_curr_time_s()
        n_bytes = _n_bytes(pending_request)
        ends = {}
        for replica in candidate_replicas:
            ends[replica.replica_id] = self._end_s(replica, n_bytes, now_s)
        ranked = sorted(candidate_replicas, key=lambda replica: ends[replica.replica_id])
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if ranked:
                self._note(pending_request, ranked[0], now_s)
                self._forget_if_cancelled(pending_request, ranked[0].replica_id)
        return [[replica] for replica in ranked]

    def on_sent(self, pending: PendingRequest, replica: RunningReplica) -> None:
        """Record that the request was sent, to the best replica or to the next with room."""
        self._note(pending, replica, self._get_curr_time_s())

    def on_rejected(self, pending: PendingRequest, replica_id: ReplicaID) -> None:
        """Remove a rejected request: it says nothing about the replica's latency."""
        self._in_flight.withdraw(pending.metadata.internal_request_id, replica_id)

    def ongoing(self, replica_id: ReplicaID) -> int:
        """The known number of requests of all routers at the replica."""
        return self._in_flight.count(replica_id) + self._ongoing.get(replica_id, (0, 0.0))[0]

    def has_others(self, replica_id: ReplicaID) -> bool:
        """Whether there is a replica other than this one."""
        return any(one != replica_id for one in self.curr_replicas)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve when a request completed, was rejected, or its replica died."""
        self._in_flight.record_end(internal_request_id, replica_id, self._get_curr_time_s())

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Called when a replica reports the number of requests it has from all routers."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        others = max(num_ongoing_requests - self._in_flight.count(replica_id), 0)
        self._ongoing[replica_id] = others, self._get_curr_time_s()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Serve before its controller notices the death."""
        super().on_replica_actor_died(replica_id)
        self._forget()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas were added or removed, or changed their adverts."""
        super().update_replicas(replicas)
        self._forget()

    def _end_s(self, replica: RunningReplica, n_bytes: int | None, now_s: float) -> float:
        """Expected completion, in seconds from now; -1 for an idle replica without an advert."""
        advert = self._advert(replica)
        queue_s = self._in_flight.backlog_s(replica.replica_id, now_s)
        if advert is None:
            return queue_s + self._in_flight.count(replica.replica_id) - 1.0
        others_s = self._others(replica, now_s) * advert.curve.at(advert.size.length(int(advert.size.fixed)))
        own_s = 0.0 if n_bytes is None else advert.curve.at(advert.size.length(n_bytes))
        return queue_s + self._in_flight.slowdown(replica.replica_id, now_s) * (others_s + own_s)

    def _note(self, pending: PendingRequest, replica: RunningReplica, now_s: float) -> None:
        """Count the request at its planned replica: the next one is routed before this one is sent."""
        advert, n_bytes = self._advert(replica), _n_bytes(pending)
        expected_s = 0.0
        if advert is not None and n_bytes is not None:
            expected_s = advert.curve.at(advert.size.length(n_bytes))
        self._in_flight.record_sent(
            pending.metadata.internal_request_id, replica.replica_id, expected_s, now_s
        )

    def _advert(self, replica: RunningReplica) -> ReplicaAdvert | None:
        told = replica.routing_stats or replica.replica_metadata
        kept = self._adverts.get(replica.replica_id)
        if kept is None or kept[0] != told:
            kept = self._adverts[replica.replica_id] = told, decode_advert(told)
        return kept[1]

    def _others(self, replica: RunningReplica, now_s: float) -> int:
        """Requests that other routers sent to the replica; an old count is refreshed in the background."""
        others, said_s = self._ongoing.get(replica.replica_id, (0, now_s))
        asked = self._asked.get(replica.replica_id)
        if others and now_s - said_s > _LOOK_S and (asked is None or asked.done()):
            task = asyncio.get_running_loop().create_task(self._ask(replica))
            self._asked[replica.replica_id] = task
        return others

    async def _ask(self, replica: RunningReplica) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                n = await replica.get_queue_len(deadline_s=_ANSWER_S)
        except (RayError, TimeoutError):
            return  # if the replica died, Serve detects it with the next request
        self.on_new_queue_len_info(replica.replica_id, n)

    def _forget_if_cancelled(self, pending: PendingRequest, replica_id: ReplicaID) -> None:
        """Remove the request if its client cancels before it is sent: Serve does not report that."""

        def on_done(future: "asyncio.Future[Any]") -> None:
            if future.cancelled():
                self._in_flight.withdraw(pending.metadata.internal_request_id, replica_id)
                self._lost.discard(pending.metadata.internal_request_id)

        pending.future.add_done_callback(on_done)

    def _forget(self) -> None:
        """Drop the state of removed replicas."""
        self._in_flight.keep(self.curr_replicas.keys())
        for known in (self._adverts, self._ongoing, self._asked):
            for replica_id in [one for one in known if one not in self.curr_replicas]:
                del known[replica_id]


def _n_bytes(pending: PendingRequest | None) -> int | None:
    """Bytes of a request's input; None for a request that does not run the model.

    The proxy sends a replica the pickled head of an HTTP request, and the body when the replica asks for it.
    """
    if pending is None:
        return None
    if not pending.metadata.is_http_request:
        return call_bytes(pending.args, pending.kwargs)
    given = pending.args[0]
    request = pickle.loads(given) if isinstance(given, bytes) else given  # made by this process's proxy
    scope = request.asgi_scope
    if not scope["path"].endswith(_INFER):
        return None
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0
