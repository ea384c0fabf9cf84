"""The HTTP routes of the page: its files at `/`, and its data under `/v2/pliant/`."""

from math import isfinite
from typing import final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pliant.errors import InputError, NodeError
from pliant.route.choice.request_terms import Terms
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.page.answer_timeline import build_timeline
from pliant.serve.page.event_stream import EventStream, PageProcess
from pliant.serve.page.node_picture import outlook
from pliant.serve.page.page_files import INDEX, answer_file
from pliant.serve.repository.model_entry import version_age

FILES_PATH = "/page/"
EVENTS_PATH, ANSWER_PATH, OUTLOOK_PATH = "/v2/pliant/events", "/v2/pliant/answer", "/v2/pliant/outlook"
PAGE_PATHS = ("/", FILES_PATH, EVENTS_PATH, ANSWER_PATH, OUTLOOK_PATH)
"""Paths that an open page reads, most of them every other second."""
_STREAM = {"cache-control": "no-store", "x-accel-buffering": "no"}


def page_routes(shown: PageProcess) -> list[Route]:
    """The page routes of a process."""
    page = _Page(shown)
    return [
        Route("/", page.index, methods=["GET"]),
        Route(f"{FILES_PATH}{{name}}", page.file, methods=["GET"]),
        Route(EVENTS_PATH, page.events, methods=["GET"]),
        Route(ANSWER_PATH, page.answer, methods=["GET"]),
        Route(OUTLOOK_PATH, page.outlook, methods=["GET"]),
    ]


@final
class _EventResponse(StreamingResponse):
    """Sends the events of `stream` to one viewer, which is registered for the whole response."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(stream.events(), media_type="text/event-stream", headers=_STREAM)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises NodeError (503) at the maximum number of viewers."""
        with self._stream.viewed():
            await super().__call__(scope, receive, send)


@final
class _Page:
    """One method for each path."""

    def __init__(self, shown: PageProcess) -> None:
        self._nodes = shown.nodes
        self._stream = EventStream(shown)

    async def index(self, request: Request) -> Response:
        return _found(answer_file(request, INDEX), INDEX)

    async def file(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        return _found(answer_file(request, name), name)

    async def events(self, request: Request) -> Response:
        return _EventResponse(self._stream)

    async def answer(self, request: Request) -> Response:
        """The timeline of an answer that is still kept."""
        node, text = self._node(request), request.query_params.get("number", "")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
        record = node.feed.find_record(number)
        if record is None:
            raise NodeError(f"answer {text[:16]!r} is not kept; choose a later one.", status=404)
        return _json(build_timeline(record))

    async def outlook(self, request: Request) -> Response:
        terms = Terms(_number(request, "deadline_s"), _number(request, "accuracy_floor"))
        return _json(outlook(self._node(request), terms))

    def _node(self, request: Request) -> ServingNode:
        """The node of the requested model, by default of its newest version; or the first node."""
        nodes, asked = self._nodes(), request.query_params.get("model")
        version = request.query_params.get("version")
        found = [one for one in nodes if asked in (None, one.model.name)]
        found = [one for one in found if version in (None, one.model.version)]
        if not found:
            names = ", ".join(f"{one.model.name} version {one.model.version}" for one in nodes)
            wanted = f"{str(asked)[:80]}{'' if version is None else f' version {version[:80]}'}"
            raise NodeError(f"this node serves {names or 'no loaded model'}, not {wanted}.", status=404)
        return found[0] if asked is None else max(found, key=lambda one: version_age(one.model.version))


def _found(response: Response | None, name: str) -> Response:
    if response is None:
        raise NodeError(f"the page has no file {name[:80]!r}.", status=404)
    return response


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise InputError(f"{name} is {text[:40]!r}; give a number.")
    return number


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
