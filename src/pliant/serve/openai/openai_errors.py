"""Errors in the format of OpenAI's API."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from starlette.responses import Response

from pliant.serve.protocol.inference import JSON

OPENAI_PATHS = "/v1/"


def openai_error(status: int, why: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """An error response in the format of OpenAI's API."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}.get(status)
    about = {"message": why, "type": kind, "param": None, "code": code}
    return Response(msgspec.json.encode({"error": about}), status, dict(headers), JSON)
