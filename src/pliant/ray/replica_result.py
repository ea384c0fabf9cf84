"""Results of replicas that may die before they respond: retried elsewhere, or a 503 to the client."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, final

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RunningReplica


class ReplicaLostError(BackPressureError):  # type: ignore[misc]  # mypy skips Ray
    """A replica died with an HTTP request in flight; Serve responds with 503 and Retry-After.

    The message is the response body in the error format of the Open Inference Protocol.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(0, 0, 503, retry_after_s)

    @property
    def message(self) -> str:
        return json.dumps({"error": str(self)})

    def __str__(self) -> str:
        return "the replica that had this request died before it answered: try again."


class RequestCounts(Protocol):
    """The router's request counts, updated by results."""

    def on_sent(self, pending: PendingRequest, replica: RunningReplica) -> None: ...

    def on_rejected(self, pending: PendingRequest, replica_id: ReplicaID) -> None: ...

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None: ...

    def ongoing(self, replica_id: ReplicaID) -> int: ...

    def has_others(self, replica_id: ReplicaID) -> bool: ...


@final
class RetryingReplica(RunningReplica):  # type: ignore[misc]  # mypy skips Ray
    """A replica whose lost requests are retried, since inference is idempotent.

    `lost` has the ids of requests that were in flight at a replica when it died, to be sent to another
    replica. Each is retried only once, so that a request that crashes replicas cannot crash them all.
    """

    def __init__(self, about: Any, queues: RequestCounts, lost: set[str]) -> None:
        super().__init__(about)
        self._queues, self._lost = queues, lost

    def try_send_request(self, pr: PendingRequest, with_rejection: bool) -> ReplicaResult:
        """Called by Serve's router, which retries a request if its replica dies before it accepts it."""
        self._queues.on_sent(pr, self)
        result = super().try_send_request(pr, with_rejection)
        if pr.metadata.is_streaming:
            return StreamedResult(result, lambda: 0.0 if self._queues.has_others(self.replica_id) else 1.0)
        return RetriedResult(result, pr, self.replica_id, self._queues, self._lost)


class _DelegatingResult(ReplicaResult):  # type: ignore[misc]  # mypy skips Ray
    """Delegates everything to Ray's `result`."""

    def __init__(self, result: ReplicaResult) -> None:
        self._result = result

    async def get_rejection_response(self) -> Any:
        return await self._result.get_rejection_response()

    def get(self, timeout_s: float | None) -> Any:
        return self._result.get(timeout_s)

    async def get_async(self) -> Any:
        return await self._result.get_async()

    def __next__(self) -> Any:
        return self._result.__next__()

    async def __anext__(self) -> Any:
        return await self._result.__anext__()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._result.add_done_callback(callback)

    def cancel(self) -> None:
        self._result.cancel()

    def to_object_ref(self) -> "ray.ObjectRef[Any]":
        return self._result.to_object_ref()

    async def to_object_ref_async(self) -> "ray.ObjectRef[Any]":
        return await self._result.to_object_ref_async()

    def to_object_ref_gen(self) -> "ray.ObjectRefGenerator[Any]":
        return self._result.to_object_ref_gen()


@final
class RetriedResult(_DelegatingResult):
    """The result of a call through a handle: acceptance is reported to Serve's router only on completion.

    Until then the router treats the death of the replica as a rejection, and sends the request to another
    replica.
    """

    def __init__(
        self,
        result: ReplicaResult,
        pending: PendingRequest,
        replica_id: ReplicaID,
        queues: RequestCounts,
        lost: set[str],
    ) -> None:
        super().__init__(result)
        self._pending, self._replica_id, self._queues, self._lost = pending, replica_id, queues, lost

    async def get_rejection_response(self) -> Any:
        """Raises RayActorError if the replica died, unless the request was lost before."""
        id = self._pending.metadata.internal_request_id
        try:
            said = await self._result.get_rejection_response()
        except asyncio.CancelledError:
            self._lost.discard(id)
            raise
        if said is None:
            return None
        if not said.accepted:
            self._queues.on_rejected(self._pending, self._replica_id)
            return said
        if id in self._lost:
            self._lost.discard(id)
            return said
        self._queues.on_new_queue_len_info(self._replica_id, said.num_ongoing_requests)
        failure = await self._failure()
        if failure is not None and _is_lost(failure):
            self._lost.add(id)
            raise failure
        return replace(said, num_ongoing_requests=self._queues.ongoing(self._replica_id))

    async def _failure(self) -> BaseException | None:
        """Wait for the result; return its exception, or None."""
        answer = asyncio.ensure_future(self._result.get_async())
        try:
            await asyncio.wait({answer})
            return None if answer.cancelled() else answer.exception()
        finally:
            answer.cancel()


@final
class StreamedResult(_DelegatingResult):
    """The result of an HTTP request. The proxy has already forwarded the body: only the client can retry."""

    def __init__(self, result: ReplicaResult, retry_after_s: Callable[[], float]) -> None:
        super().__init__(result)
        self._retry_after_s, self._has_begun = retry_after_s, False

    async def __anext__(self) -> Any:
        """Raises ReplicaLostError if the replica dies before the first part of its response."""
        try:
            part = await self._result.__anext__()
        except RayActorError as error:
            if self._has_begun or not _is_lost(error):
                raise
            raise ReplicaLostError(self._retry_after_s()) from error
        self._has_begun = True
        return part


def _is_lost(failure: BaseException) -> bool:
    """Whether the replica itself died, rather than an actor that it called."""
    return isinstance(failure, RayActorError) and not isinstance(failure, RayTaskError)
