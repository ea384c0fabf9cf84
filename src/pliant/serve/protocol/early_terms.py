"""How soon a request is to be answered, read before its model is loaded, which may take longer."""

from typing import Any

import msgspec

from pliant.errors import InputError, RouteError
from pliant.route.choice.terms import NO_TERMS, Terms
from pliant.route.node_messages import decode_route


class _Asked(msgspec.Struct, frozen=True):
    """A request of which only the parameters are read."""

    parameters: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Asked)


def early_terms(body: bytes, header_bytes: str | None, route: str | None) -> Terms:
    """The deadline that a request names, or that the node names which passed it on (`route`, its header).

    What cannot be read names none here: it is refused where the whole request is read.
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
        said = _DECODER.decode(memoryview(body)[:n]).parameters
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_TERMS
    return stated_terms(said)


def stated_terms(parameters: dict[str, Any]) -> Terms:
    """Those of a request's parameters that say how soon; none where they cannot be."""
    deadline_s, is_late = parameters.get("deadline_s"), parameters.get("best_effort") is True or None
    if not isinstance(deadline_s, int | float) or isinstance(deadline_s, bool):
        return Terms(best_effort=is_late)
    try:
        return Terms(float(deadline_s), best_effort=is_late)
    except (InputError, OverflowError):
        return NO_TERMS
