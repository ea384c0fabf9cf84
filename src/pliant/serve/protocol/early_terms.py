"""Read the deadline of a request before its model is loaded, which may take longer."""

from typing import Any

import msgspec

from pliant.errors import InputError, RouteError
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.route.node_messages import decode_route
from pliant.serve.http.limits import Limits


class _RequestParameters(msgspec.Struct, frozen=True):
    """A request of which only the parameters are decoded."""

    parameters: msgspec.Raw = msgspec.Raw(b"{}")


_DECODER = msgspec.json.Decoder(_RequestParameters)
_PARAMETERS = msgspec.json.Decoder(dict[str, Any])


def early_terms(body: bytes, header_bytes: str | None, route: str | None, limits: Limits) -> Terms:
    """The deadline of a request, or that in the route header of the node that forwarded it (`route`).

    Unreadable input, and parameters longer than `limits` allow, have no deadline here; they are refused when
    the whole request is read.
    """
    if route is not None:
        try:
            passed = decode_route(route)
        except RouteError:
            return NO_TERMS
        if passed.path:
            return Terms(passed.deadline_s or None, best_effort=passed.best_effort)
    n = int(header_bytes) if header_bytes is not None and header_bytes.isdecimal() else len(body)
    try:
        parameters = _DECODER.decode(memoryview(body)[:n]).parameters
        if memoryview(parameters).nbytes > limits.head_bytes:
            return NO_TERMS
        said = _PARAMETERS.decode(parameters)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_TERMS
    return stated_terms(said)


def stated_terms(parameters: dict[str, Any]) -> Terms:
    """The deadline and best-effort flag in a request's parameters; no terms if they are invalid."""
    deadline_s, is_late = parameters.get("deadline_s"), parameters.get("best_effort") is True or None
    if not isinstance(deadline_s, int | float) or isinstance(deadline_s, bool):
        return Terms(best_effort=is_late)
    try:
        return Terms(float(deadline_s), best_effort=is_late)
    except (InputError, OverflowError):
        return NO_TERMS
