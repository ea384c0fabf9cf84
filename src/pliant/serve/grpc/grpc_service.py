"""The methods of the protocol's gRPC service: access control and responses."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import grpc
from google.protobuf.message import DecodeError

from pliant.errors import InputError, NodeError, PliantError
from pliant.route.choice.request_terms import Terms
from pliant.route.node_identity import NODE_HEADER
from pliant.serve.access.access import AccessControl, AccessGrant, AccessRequest, Refusal
from pliant.serve.access.roles import GRPC, routes_without_rule
from pliant.serve.answers.metrics import Metrics
from pliant.serve.grpc.call_status import code_of, refuse
from pliant.serve.grpc.infer_messages import read_infer, write_infer
from pliant.serve.grpc.message_coding import decompress, is_worth_compressing
from pliant.serve.grpc.observed_calls import (
    ObservedCall,
    client_of,
    metadata_bytes,
    metadata_of,
    observe_call,
)
from pliant.serve.grpc.wire_messages import METHODS, SERVICE, message
from pliant.serve.http.byte_budget import ByteBudget
from pliant.serve.http.limits import Limits
from pliant.serve.node.infer_call import InferCall
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.protocol.descriptions import model_config, model_metadata, server_metadata
from pliant.serve.protocol.early_terms import stated_terms
from pliant.serve.protocol.pending_request import LEAST_S
from pliant.serve.repository.change_requests import change_status, version_asked
from pliant.serve.repository.front_node import FrontNode
from pliant.serve.repository.live_model import ModelLease
from pliant.serve.repository.model_repository import ModelRepository
from pliant.serve.telemetry.request_context import ServedModel, set_model
from pliant.serve.telemetry.tracing import Tracer
from pliant.serve.upstream.request_explanation import EXPLAIN_PATH
from pliant.serve.upstream.upstreams import REQUEST_HEADER

_Method = Callable[[Any, "_CallContext"], Awaitable[Any]]
_LONGEST_S = 1e6
_UNOBSERVED = ("ServerLive", "ServerReady")
"""Health checks, which come every few seconds, have no span and no log line."""


@dataclass(eq=False, slots=True)
class _RequestBytes:
    """The bytes of one request until its response."""

    address: str

    def evict(self) -> None:
        """Never evicted: only complete messages are held, until they are answered."""


@dataclass(slots=True)
class _CallContext:
    """A call: gRPC's context, and its log entry and span; None if it is not observed.

    `metrics` count its response: those of its model, once it is known.
    """

    context: Any
    call: ObservedCall | None
    metrics: Metrics

    def set_model(self, model: ServedModel, metrics: Metrics) -> None:
        self.metrics = metrics
        if self.call is not None:
            self.call.set_model(model)


@final
class GrpcService:
    """Serves the models of `repository`; `front` answers calls that name no model.

    A model is not unloaded while a call uses it; an evicted model is loaded for a call. `access` applies the
    same route rules as over HTTP.
    """

    def __init__(
        self,
        repository: ModelRepository,
        front: FrontNode,
        access: AccessControl,
        limits: Limits,
        tracer: Tracer,
    ) -> None:
        self._repository, self._front, self._access, self._tracer = repository, front, access, tracer
        self.around: Callable[[str, int], AbstractContextManager[None]] = lambda caller, n_bytes: (
            nullcontext()
        )
        """Context around each call, once its message is complete: the caller and the number of received
        bytes."""
        self.is_closing, self.n_refused = False, 0
        """Whether further calls are refused, and how many were."""
        self._most_bytes = limits.body_bytes
        self._budget = ByteBudget(limits.buffer_bytes, limits.client_buffer_bytes)

    def handler(self) -> grpc.GenericRpcHandler:
        """The handlers to register with a gRPC server."""
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
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        assert methods.keys() == {*METHODS}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(name, methods[name])) for name in METHODS
        }
        missing = routes_without_rule(("POST", f"{GRPC}/{name}") for name in handlers)
        assert not missing, f"serve/access/roles.py says nothing of {', '.join(missing)}"
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _guarded(self, name: str, method: _Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Wrap `method` with access control, error statuses and response counts, from bytes to bytes."""
        path, read = f"{GRPC}/{name}", message(f"{name}Request").FromString

        async def answer(content: bytes, context: Any) -> bytes:
            n_bytes = len(content) + metadata_bytes(context)
            with self.around(context.peer(), n_bytes), ExitStack() as stack:
                call = None
                if name not in _UNOBSERVED:
                    call = stack.enter_context(observe_call(path, context, self._tracer, self._front.name))
                asked = _CallContext(context, call, self._front.metrics)
                return await self._answer(path, method, read, content, asked)

        return answer

    async def _answer(
        self, path: str, method: _Method, read: Callable[[bytes], Any], content: bytes, asked: _CallContext
    ) -> bytes:
        code = grpc.StatusCode.UNKNOWN
        said = {} if asked.call is None else asked.call.metadata
        try:
            if self.is_closing:
                self.n_refused += 1
                raise NodeError("this node is shutting down; call another one.", 503, 1)
            admitted = self._admitted(path, asked.context)
            plain = decompress(content, self._most_bytes)
            self._access.spend(admitted, len(plain))
            answer: bytes = (await method(_read(read, plain), asked)).SerializeToString()
            self._access.spend(admitted, len(answer))
            if not is_worth_compressing(answer):
                asked.context.disable_next_message_compression()
            code = grpc.StatusCode.OK
        except PliantError as error:
            code = code_of(error)
            await refuse(asked.context, code, error, {NODE_HEADER.lower(): self._front.name, **said})
        except asyncio.CancelledError:  # the client cancelled, or its deadline passed
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            asked.metrics.responses.labels(path, code.name).inc()
            if asked.call is not None:
                asked.call.code = code
        if said:
            await asked.context.send_initial_metadata(tuple(said.items()))
        return answer

    def _admitted(self, path: str, context: Any) -> AccessGrant:
        """Check access. Raises NodeError: no permission (401, 403), or over the rate limit (429)."""
        found = self._access.admit(_access_request(path, context))
        if isinstance(found, Refusal):
            after = found.headers.get("retry-after")
            raise NodeError(found.why, found.status, None if after is None else int(after))
        return found

    async def _live(self, request: Any, asked: _CallContext) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any, asked: _CallContext) -> Any:
        return message("ServerReadyResponse")(ready=not self._front.is_draining)

    async def _model_ready(self, request: Any, asked: _CallContext) -> Any:
        """Clients also use ModelReady to ask whether a model exists: an unknown model is not ready."""
        is_served = self._repository.is_served(request.name, request.version or None)
        return message("ModelReadyResponse")(ready=is_served and not self._front.is_draining)

    async def _server(self, request: Any, asked: _CallContext) -> Any:
        about = server_metadata(self._front.name, self._front.identity.version or "")
        return message("ServerMetadataResponse")(**about)

    async def _model(self, request: Any, asked: _CallContext) -> Any:
        async with self._lease(request.name, request.version, asked) as live:
            asked.set_model(live.node.model, live.node.metrics)
            versions = self._repository.versions(request.name)
            return message("ModelMetadataResponse")(**model_metadata(live.node.signature, versions))

    async def _config(self, request: Any, asked: _CallContext) -> Any:
        async with self._lease(request.name, request.version, asked) as live:
            asked.set_model(live.node.model, live.node.metrics)
            served = live.node.served
            about = model_config(live.node.signature, served.max_length, served.identity)
        parameter = message("ModelParameter")
        about["parameters"] = {name: parameter(**value) for name, value in about["parameters"].items()}
        return message("ModelConfigResponse")(config=about)

    async def _statistics(self, request: Any, asked: _CallContext) -> Any:
        """Statistics of a version, of all loaded versions of a model, or of all loaded models."""
        named = [one for one in self._repository.nodes if request.name in ("", one.model.name)]
        if named and not request.version:
            if request.name:
                asked.set_model(named[-1].model, named[-1].metrics)
            every = [node.protocol_statistics() for node in named]
            return message("ModelStatisticsResponse")(model_stats=every)
        async with self._lease(request.name, request.version, asked) as live:
            asked.set_model(live.node.model, live.node.metrics)
            return message("ModelStatisticsResponse")(model_stats=[live.node.protocol_statistics()])

    async def _index(self, request: Any, asked: _CallContext) -> Any:
        await self._repository.refresh()
        rows = self._repository.index(request.ready)
        models = [
            {"name": row.name, "version": row.version, "state": row.state, "reason": row.reason}
            for row in rows
        ]
        return message("RepositoryIndexResponse")(models=models)

    async def _load(self, request: Any, asked: _CallContext) -> Any:
        await self._change(request, self._repository.load)
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, request: Any, asked: _CallContext) -> Any:
        await self._change(request, self._repository.unload)
        return message("RepositoryModelUnloadResponse")()

    async def _change(self, request: Any, change: Callable[[str, str | None], Awaitable[None]]) -> None:
        """Load or unload a model. Raises NodeError with the same status as over HTTP."""
        parameters = {name: _plain(value) for name, value in request.parameters.items()}
        try:
            await change(request.model_name, version_asked(parameters))
        except NodeError:
            raise
        except PliantError as error:
            raise NodeError(str(error), status=change_status(error)) from error

    async def _infer(self, request: Any, asked: _CallContext) -> Any:
        start_s, terms = time.monotonic(), _early_terms(request, asked.context)
        async with self._lease(request.model_name, request.model_version, asked, terms) as live:
            asked.set_model(live.node.model, live.node.metrics)
            with set_model(live.node.model):
                return await self._inferred(live.node, request, asked, time.monotonic() - start_s)

    def _lease(self, name: str, version: str, asked: _CallContext, terms: Terms | None = None) -> ModelLease:
        """The lease of a model, whose call `asked` is from now on, also if it is not loaded."""
        slot = self._repository.newest(name, version or None)
        if slot is not None:
            asked.set_model(slot.model, slot.count())
        return self._repository.lease(name, version or None, terms)

    async def _inferred(self, node: ServingNode, request: Any, asked: _CallContext, waited_s: float) -> Any:
        client = client_of(asked.context)
        held = _RequestBytes(client)
        if not self._budget.take(held, request.ByteSize()):
            raise NodeError("pending requests use all of the buffer memory; try again.", 503, 1)
        try:
            self._budget.keep(held)
            deadline_s = sooner_deadline_s(request, asked.context, node.terms.deadline_s, waited_s)
            body = read_infer(request, node.limits, deadline_s)
            id = metadata_of(asked.context).get(REQUEST_HEADER.lower())
            caller = _access_request(f"{GRPC}/ModelInfer", asked.context)
            explains = partial(self._access.allows, caller, "GET", EXPLAIN_PATH)
            call = InferCall(body.content, body.header_bytes, None, id, client, waited_s, explains)
            answer = await node.infer(call)
        finally:
            self._budget.release(held)
        if asked.call is not None:
            asked.call.metadata[NODE_HEADER.lower()] = answer.node
        return write_infer(answer.body, node.model.version)


def _access_request(path: str, context: Any) -> AccessRequest:
    shown = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
    return AccessRequest("POST", path, shown, address=client_of(context))


def _read(read: Callable[[bytes], Any], content: bytes) -> Any:
    """Decode a message. Raises InputError for invalid bytes."""
    try:
        return read(content)
    except DecodeError as error:
        raise InputError(f"the request is not a valid message of this method: {error}.") from error


def sooner_deadline_s(request: Any, context: Any, default_s: float | None, waited_s: float) -> float | None:
    """The gRPC deadline, if it is sooner than that of the request, or the node's `default_s`; else None.

    All are in seconds since the call came, `waited_s` ago. Clients give every call a deadline of minutes,
    which is not a latency target.
    """
    left_s = context.time_remaining()
    if left_s is None:
        return None
    given, said = request.parameters.get("deadline_s"), default_s
    if given is not None:
        choice = given.WhichOneof("parameter_choice")
        if choice not in ("int64_param", "double_param", "uint64_param"):
            return None  # reading the terms refuses it
        said = getattr(given, choice)
    deadline_s: float = left_s + waited_s
    return deadline_s if said is None or said > deadline_s else None


def _early_terms(request: Any, context: Any) -> Terms:
    """The request's own terms, with the gRPC deadline if it is sooner."""
    terms = stated_terms({name: _plain(value) for name, value in request.parameters.items()})
    left_s = context.time_remaining()
    if left_s is None or (terms.deadline_s is not None and terms.deadline_s <= left_s):
        return terms
    return replace(terms, deadline_s=min(max(left_s, LEAST_S), _LONGEST_S))


def _plain(value: Any) -> object:
    """A parameter of a repository call as a JSON value."""
    choice = value.WhichOneof("parameter_choice")
    return None if choice is None else getattr(value, choice)
