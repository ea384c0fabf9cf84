"""Responses that several paths give: JSON, mistakes, and what nobody hears."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pliant.serve.access.guard import error_response
from pliant.serve.protocol.inference import JSON


def json_response(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


async def gone(request: Request, error: Exception) -> Response:
    """Nobody hears it; it is counted, and no traceback is logged, with which a flood would fill a disk."""
    return Response(status_code=499)


async def broken(request: Request, error: Exception) -> Response:
    """A mistake of the node's own."""
    return error_response(500, "the node failed; its log says how.", {})
