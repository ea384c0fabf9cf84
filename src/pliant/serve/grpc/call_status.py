"""The gRPC status and the metadata of a refused call."""

from collections.abc import Mapping
from math import ceil
from typing import Any, NoReturn

import grpc

from pliant.errors import DeadlineError, NodeError, PliantError
from pliant.serve.protocol.statuses import http_status

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.RESOURCE_EXHAUSTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_PUSHBACK = "grpc-retry-pushback-ms"
"""The server's pushback of gRPC retries (gRFC A6): how long a client waits before it retries
automatically."""


def code_of(error: PliantError) -> grpc.StatusCode:
    """Map an error to a status. A missed deadline is not UNAVAILABLE, which would make clients retry."""
    if isinstance(error.__cause__, DeadlineError) or isinstance(error, DeadlineError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _CODES.get(http_status(error), grpc.StatusCode.INTERNAL)


async def refuse(
    context: Any, code: grpc.StatusCode, error: PliantError, said: Mapping[str, str]
) -> NoReturn:
    """Abort the call with `code`; `said` is further trailing metadata."""
    more = dict(said)
    if isinstance(error, NodeError) and error.retry_after_s is not None:
        more[_PUSHBACK] = str(ceil(error.retry_after_s * 1e3))
    await context.abort(code, str(error), tuple(more.items()))
    raise AssertionError("abort raises")
