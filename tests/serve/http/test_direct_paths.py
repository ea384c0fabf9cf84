"""A path beside Starlette answers as one of its own: errors that are known, others, and other calls."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pliant.errors import InputError, PliantError
from pliant.serve.http.direct_paths import DirectPaths


async def _beside(scope: Any, receive: Any, send: Any) -> None:
    await Response(status_code=404)(scope, receive, send)


async def _failed(request: Request, error: Exception) -> Response:
    return Response(str(error), 400)


async def _broken(request: Request, error: Exception) -> Response:
    return Response("broken", 500)


def asked(path: str, method: str, error: Exception | None) -> list[Any]:
    """What is sent for one call; raises what the application does."""
    sent: list[Any] = []

    async def answer(request: Request) -> Response:
        if error is not None:
            raise error
        return Response("fine")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    app = DirectPaths(_beside, frozenset({"/infer"}), answer, {PliantError: _failed}, _broken)
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    try:
        asyncio.run(app(scope, receive, send))
    except ValueError as raised:
        sent.append(raised)
    return sent


@pytest.mark.parametrize(
    ("path", "method", "error", "status"),
    [
        ("/infer", "POST", None, 200),
        ("/infer", "POST", InputError("no text"), 400),
        ("/infer", "GET", None, 404),
        ("/infer/", "POST", None, 404),
    ],
)
def test_calls_are_answered_as_starlette_would(
    path: str, method: str, error: Exception | None, status: int
) -> None:
    """A subclass of an error that is known has its answer; what is posted elsewhere goes on."""
    assert asked(path, method, error)[0]["status"] == status


def test_a_mistake_of_the_nodes_own_is_answered_and_raised() -> None:
    """The server logs it."""
    error = ValueError("a bug")
    start, body, raised = asked("/infer", "POST", error)
    assert (start["status"], body["body"]) == (500, b"broken")
    assert raised is error
