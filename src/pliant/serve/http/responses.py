"""Responses shared by several paths: JSON, internal errors, disconnected clients."""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pliant.serve.access.guard import error_response
from pliant.serve.protocol.inference import JSON


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def method_refusal(request: Request, error: HTTPException) -> str:
    """Why a method is refused (405), with those that its path takes."""
    allowed = (error.headers or {}).get("Allow", "")
    hint = f" Use {', '.join(sorted(allowed.split(', ')))}." if allowed else ""
    return f"{request.method} is not allowed here.{hint}"


async def answer_disconnect(request: Request, error: Exception) -> Response:
    """Count a disconnected client without logging a traceback, which a flood could use to fill a disk."""
    return Response(status_code=499)


async def internal_error(request: Request, error: Exception) -> Response:
    """The response to an internal error."""
    return error_response(500, "internal error; the node's log has the reason.", {})
