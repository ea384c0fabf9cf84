"""Serve some paths without Starlette's layers, which cost as much as the rest of a short request."""

from collections.abc import Awaitable, Callable, Mapping
from typing import final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request, Exception], Awaitable[Response]]


@final
class DirectPaths:
    """`app`, except that POST requests to `paths` are answered by `answer`.

    An exception is handled by the first of `handlers`, in order, that matches its type. Other exceptions are
    answered by `internal_error` and raised again, so that the server logs them, as in Starlette.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: frozenset[str],
        answer: Callable[[Request], Awaitable[Response]],
        handlers: Mapping[type[Exception], Handler],
        internal_error: Handler,
    ) -> None:
        self._app, self._paths, self._answer = app, paths, answer
        self._handlers, self._broken = tuple(handlers.items()), internal_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except Exception as error:
            handler = next((one for kind, one in self._handlers if isinstance(error, kind)), None)
            response = await (handler or self._broken)(request, error)
            if handler is None:
                await response(scope, receive, send)
                raise
        await response(scope, receive, send)
