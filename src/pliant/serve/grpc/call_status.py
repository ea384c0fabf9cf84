"""How a call over gRPC ends that is refused: its status, and what stands behind it."""

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
"""Of gRPC's retries (gRFC A6): how long a client that retries by itself waits before it does."""


def code_of(error: PliantError) -> grpc.StatusCode:
    """A deadline that cannot be kept is no reason to ask again, as UNAVAILABLE is."""
    if isinstance(error.__cause__, DeadlineError) or isinstance(error, DeadlineError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _CODES.get(http_status(error), grpc.StatusCode.INTERNAL)


async def refuse(
    context: Any, code: grpc.StatusCode, error: PliantError, said: Mapping[str, str]
) -> NoReturn:
    """End the call so; `said` is what its metadata tells beside."""
    more = dict(said)
    if isinstance(error, NodeError) and error.retry_after_s is not None:
        more[_PUSHBACK] = str(ceil(error.retry_after_s * 1e3))
    await context.abort(code, str(error), tuple(more.items()))
    raise AssertionError("abort raises")
