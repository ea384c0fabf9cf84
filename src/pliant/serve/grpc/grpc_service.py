"""The methods of the protocol's gRPC service: who may call them, and what they answer with."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn, final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from pliant.errors import DeadlineError, InputError, NodeError, PliantError
from pliant.route.node_identity import NODE_HEADER
from pliant.serve.access.access import Access, Admitted, CallerShown, Refusal
from pliant.serve.access.roles import GRPC, unruled
from pliant.serve.grpc.infer_messages import read_infer, write_infer
from pliant.serve.grpc.wire_messages import METHODS, SERVICE, message
from pliant.serve.http.client_budget import ByteBudget
from pliant.serve.node.serving_node import Call, Node
from pliant.serve.protocol.descriptions import VERSIONS, model_config, model_metadata, server_metadata
from pliant.serve.protocol.statuses import http_status
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.upstream.upstreams import REQUEST_HEADER

Lease = Callable[[str, str | None], AbstractAsyncContextManager[LiveModel]]
_Method = Callable[[Any, Any], Awaitable[Any]]
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_PUSHBACK = "grpc-retry-pushback-ms"
"""Of gRPC's retries (gRFC A6): how long a client that retries by itself waits before it does."""


@dataclass(eq=False, slots=True)
class _Message:
    """The bytes of one request, while it waits for its answer."""

    address: str

    def evict(self) -> None:
        """Whole messages only are held, and kept until they are answered."""


@final
class GrpcService:
    """`nodes` are those of the models by name now, the first one's limits hold for all. A model is not
    unloaded while a request has its `lease`, and loaded for it where it was evicted.

    `access` says who may call what, by the same table as over HTTP.
    """

    def __init__(
        self, nodes: Callable[[], Mapping[str, Node]], lease: Lease, access: Access, version: str
    ) -> None:
        self._lease, self._nodes, self._access, self._version = lease, nodes, access, version
        limits = self._first.limits
        self._budget = ByteBudget(limits.buffer_bytes, limits.client_buffer_bytes)

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        methods: dict[str, _Method] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(name, methods[name]),
                response_serializer=message(f"{name}Response").SerializeToString,
            )
            for name in METHODS
            if name in methods
        }
        missing = unruled(("POST", f"{GRPC}/{name}") for name in handlers)
        assert not missing, f"serve/access/roles.py says nothing of {', '.join(missing)}"
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    @property
    def _first(self) -> Node:
        return next(iter(self._nodes().values()))

    def _guarded(self, name: str, method: _Method) -> _Method:
        """`method`, for who may call it; its errors become statuses, and every answer is counted."""
        path, read = f"{GRPC}/{name}", message(f"{name}Request").FromString

        async def answer(content: bytes, context: Any) -> Any:
            count = self._first.metrics.responses.labels
            try:
                admitted = self._admitted(path, context)
                self._access.spend(admitted, len(content))
                result = await method(_read(read, content), context)
                self._access.spend(admitted, result.ByteSize())
            except PliantError as error:
                code = _code(error)
                count(path, code.name).inc()
                await _refuse(context, code, error, self._first.name)
            except asyncio.CancelledError:  # the client has left, or its deadline has passed
                count(path, grpc.StatusCode.CANCELLED.name).inc()
                raise
            count(path, grpc.StatusCode.OK.name).inc()
            return result

        return answer

    def _admitted(self, path: str, context: Any) -> Admitted:
        """Raises NodeError for who may not call it (401, 403), or calls too much (429)."""
        shown = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        found = self._access.admit(CallerShown("POST", path, shown, address=_client(context)))
        if isinstance(found, Refusal):
            after = found.headers.get("retry-after")
            raise NodeError(found.why, found.status, None if after is None else int(after))
        return found

    def _node(self, name: str, version: str) -> Node:
        """Raises NodeError (404)."""
        node = self._nodes().get(name)
        if node is None or version not in ("", *VERSIONS):
            known = ", ".join(self._nodes())
            what = f"{name[:80]!r}" + (f" of version {version[:40]!r}" if version else "")
            raise NodeError(f"there is no model {what}; this node serves {known}, version 1.", 404)
        return node

    async def _live(self, request: Any, context: Any) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any, context: Any) -> Any:
        return message("ServerReadyResponse")(ready=not self._first.is_draining)

    async def _model_ready(self, request: Any, context: Any) -> Any:
        """An unknown model is not ready: clients ask so whether there is one."""
        node = self._nodes().get(request.name)
        is_ready = node is not None and not node.is_draining and request.version in ("", *VERSIONS)
        return message("ModelReadyResponse")(ready=is_ready)

    async def _server(self, request: Any, context: Any) -> Any:
        return message("ServerMetadataResponse")(**server_metadata(self._first.name, self._version))

    async def _model(self, request: Any, context: Any) -> Any:
        node = self._node(request.name, request.version)
        return message("ModelMetadataResponse")(**model_metadata(node.signature))

    async def _config(self, request: Any, context: Any) -> Any:
        node = self._node(request.name, request.version)
        about = model_config(node.signature, node.served.max_length, node.served.identity)
        parameter = message("ModelParameter")
        about["parameters"] = {name: parameter(**value) for name, value in about["parameters"].items()}
        return message("ModelConfigResponse")(config=about)

    async def _statistics(self, request: Any, context: Any) -> Any:
        """Of one model, or of all where none is named."""
        asked = [self._node(request.name, request.version)] if request.name else self._nodes().values()
        return message("ModelStatisticsResponse")(model_stats=[node.statistics_shown() for node in asked])

    async def _index(self, request: Any, context: Any) -> Any:
        models = [{"name": name, "version": VERSIONS[0], "state": "READY"} for name in self._nodes()]
        return message("RepositoryIndexResponse")(models=models)

    async def _infer(self, request: Any, context: Any) -> Any:
        async with self._lease(request.model_name, request.model_version or None) as live:
            return await self._answered(live.node, request, context)

    async def _answered(self, node: Node, request: Any, context: Any) -> Any:
        client = _client(context)
        held = _Message(client)
        if not self._budget.take(held, request.ByteSize()):
            raise NodeError("requests that wait take all the room there is for them; try again.", 503, 1)
        try:
            self._budget.keep(held)
            body = read_infer(request, node.limits, _deadline_s(request, context, node))
            id = _metadata(context).get(REQUEST_HEADER.lower())
            answer = await node.infer(Call(body.content, body.header_bytes, None, id, client))
        finally:
            self._budget.release(held)
        await context.send_initial_metadata(((NODE_HEADER.lower(), answer.node),))
        return write_infer(answer.body)


def _read(read: Callable[[bytes], Any], content: bytes) -> Any:
    """Raises InputError for bytes that are no such message."""
    try:
        return read(content)
    except DecodeError as error:
        raise InputError(f"the request is no message of this method: {error}.") from error


def _deadline_s(request: Any, context: Any, node: Node) -> float | None:
    """Seconds until the call's own deadline, where that is sooner than what the request or the node says.

    None where it is not: clients give every call a deadline of minutes, which is no wish for an answer then.
    """
    left_s = context.time_remaining()
    if left_s is None:
        return None
    given = request.parameters.get("deadline_s")
    said: float | None = node.terms.deadline_s
    if given is not None:
        choice = given.WhichOneof("parameter_choice")
        if choice not in ("int64_param", "double_param", "uint64_param"):
            return None  # is refused where the terms are read
        said = getattr(given, choice)
    return left_s if said is None or said > left_s else None


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


def _client(context: Any) -> str:
    """The caller's address, without its port: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    kind, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else address


def _code(error: PliantError) -> grpc.StatusCode:
    """A deadline that cannot be kept is no reason to ask again, as UNAVAILABLE is."""
    if isinstance(error.__cause__, DeadlineError) or isinstance(error, DeadlineError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _CODES.get(http_status(error), grpc.StatusCode.INTERNAL)


async def _refuse(context: Any, code: grpc.StatusCode, error: PliantError, node: str) -> NoReturn:
    more = [(NODE_HEADER.lower(), node)]
    if isinstance(error, NodeError) and error.retry_after_s is not None:
        more.append((_PUSHBACK, str(ceil(error.retry_after_s * 1e3))))
    await context.abort(code, str(error), tuple(more))
    raise AssertionError("abort raises")
