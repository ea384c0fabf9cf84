"""`POST /v1/embeddings` in OpenAI's form, for models with a vector output.

Each input is a separate request through `ServingNode.infer`.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pliant.errors import InputError, NodeError, PliantError
from pliant.ir.port import Port
from pliant.route.choice.request_terms import Terms
from pliant.serve.answers.gather import gather
from pliant.serve.http.body_reader import BodyReader
from pliant.serve.node.infer_call import InferCall, InferResponse
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.openai.embedders import Embedder, embedder
from pliant.serve.openai.openai_errors import openai_error
from pliant.serve.protocol.client_messages import read_answer, write_request
from pliant.serve.protocol.inference import JSON, InferBody, InferRequest, RequestedOutput
from pliant.serve.protocol.statuses import http_status
from pliant.serve.telemetry.request_context import ANSWERING, set_model

EMBEDDINGS_PATH = "/v1/embeddings"
_MOST_BYTES = 4 << 20
_MOST_INPUTS = 2048


class LeasedModel(Protocol):
    """A model that stays loaded while it is leased."""

    @property
    def node(self) -> ServingNode: ...


Lease = Callable[[str, Terms], AbstractAsyncContextManager[LeasedModel]]


class EmbeddingsRequest(msgspec.Struct, frozen=True):
    """A request: a text, several texts, or the tokens of one or several.

    The last three fields are pliant's terms.
    """

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    deadline_s: float | None = None
    accuracy_floor: float | None = None
    best_effort: bool | None = None


_REQUEST = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings_route(nodes: Callable[[], Sequence[ServingNode]], lease: Lease, bodies: BodyReader) -> Route:
    """The route. `nodes` returns the loaded nodes; `lease` keeps the node of a model loaded.

    A deadline includes the time that loading an evicted model takes.
    """

    async def answer(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        try:
            async with bodies.read(request, _MOST_BYTES) as content:
                asked, start_s = _read(content), loop.time()
                terms = Terms(asked.deadline_s, asked.accuracy_floor, asked.best_effort)
                async with lease(asked.model, terms) as live:
                    client = request.client.host if request.client else ""
                    request.scope[ANSWERING] = live.node
                    with set_model(live.node.model):
                        return await _answer(live, asked, terms, client, loop.time() - start_s)
        except NodeError as error:
            why = str(error)
            if error.status == 404:
                able = [one.served.name for one in nodes() if embedder(one.signature) is not None]
                why = f"{why} Models that give embeddings here: {', '.join(able) or 'none'}."
            after_s = error.retry_after_s
            return openai_error(error.status, why, {} if after_s is None else {"retry-after": str(after_s)})
        except PliantError as error:
            return openai_error(http_status(error), str(error))
        except HTTPException as error:
            return openai_error(error.status_code, error.detail, error.headers or {})

    return Route(EMBEDDINGS_PATH, answer, methods=["POST"])


def _read(content: bytes) -> EmbeddingsRequest:
    try:
        return _REQUEST.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request is not a valid embeddings request in JSON: {error}.") from error


async def _answer(
    live: LeasedModel, asked: EmbeddingsRequest, terms: Terms, client: str, waited_s: float
) -> Response:
    node, embeds = live.node, _embedder(live, asked)
    start_s = node.clock() - waited_s

    # Wrong tokens are refused before any work; texts are read in turn, as reading them takes time.
    inputs = [item if isinstance(item, str) else embeds.tensors(item) for item in _items(asked.input)]

    def ask(item: str | Mapping[str, np.ndarray]) -> Any:
        tensors = embeds.tensors(item) if isinstance(item, str) else item
        left = terms
        if terms.deadline_s is not None:
            left = Terms(
                max(terms.deadline_s + start_s - node.clock(), 1e-6), terms.accuracy_floor, terms.best_effort
            )
        body = _body(node, tensors, embeds.output, left)
        return node.infer(InferCall(body.content, body.header_bytes, client=client))

    found: list[InferResponse] = await gather([partial(ask, item) for item in inputs], node.rows_at_once)
    data = []
    for index, one in enumerate(found):
        vector = read_answer(one.body, node.signature)[0][embeds.output.name].ravel()
        embedding: Any = vector.tolist()
        if asked.encoding_format == "base64":
            embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    pairs = zip(_items(asked.input), found, strict=True)
    n = sum(_count_tokens(node, embeds, item, one.length) for item, one in pairs)
    usage = {"prompt_tokens": n, "total_tokens": n}
    reply = {"object": "list", "data": data, "model": asked.model, "usage": usage}
    return Response(msgspec.json.encode(reply), media_type=JSON)


def _count_tokens(node: ServingNode, embeds: Embedder, item: str | list[int], length: int) -> int:
    """The tokens of an item, whose request has this length: that of a graph of a fixed shape is always 1."""
    reader = node.served.text_reader
    if embeds.n_tokens is None or (isinstance(item, str) and reader is None):
        return length
    return len(item) if reader is None or not isinstance(item, str) else reader.count_tokens(item)


def _embedder(live: LeasedModel, asked: EmbeddingsRequest) -> Embedder:
    """Raise NodeError (404) for a model without embeddings, and InputError for an unsupported width."""
    found = embedder(live.node.signature)
    if found is None:
        raise NodeError(f"{asked.model[:80]!r} gives no embeddings.", 404)
    if asked.dimensions not in (None, found.width):
        raise InputError(
            f"{asked.model} gives {found.width} dimensions, not {asked.dimensions}; omit `dimensions`."
        )
    return found


def _items(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One item for each embedding. Raises InputError if items are mixed, missing, empty or too many."""
    if isinstance(given, str):
        return [given]
    tokens = [item for item in given if isinstance(item, int)]
    if tokens and len(tokens) == len(given):
        return [tokens]
    texts = [item for item in given if isinstance(item, str)]
    arrays = [item for item in given if isinstance(item, list)]
    if not given or len(given) not in (len(texts), len(arrays)) or not all(arrays):
        raise InputError(
            "`input` is a text, texts, tokens, or lists of tokens: one kind, none of them empty."
        )
    if len(given) > _MOST_INPUTS:
        raise InputError(f"`input` has {len(given)} elements; at most {_MOST_INPUTS} are read at once.")
    return [*texts, *arrays]


def _body(node: ServingNode, tensors: Mapping[str, np.ndarray], output: Port, terms: Terms) -> InferBody:
    request = InferRequest("", tensors, (RequestedOutput(output, True),), terms)
    return write_request(request, node.signature, terms)
