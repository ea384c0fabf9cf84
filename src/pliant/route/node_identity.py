"""The identity headers of messages between nodes: model and software version, and whether they match."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pliant.errors import RouteError
from pliant.ir.envelope import VERSION, is_neighbour, version_refusal

NODE_HEADER = "Pliant-Node"
"""The name of the node that computed an answer; responses carry it through every hop."""
MODEL_HEADER, VERSION_HEADER, PROTOCOL_HEADER = "Pliant-Model", "Pliant-Version", "Pliant-Protocol"
_TEXT = re.compile(r"[A-Za-z0-9._+-]{1,128}")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's model (its content hash), the version of its software, and that of its messages."""

    model: str | None = None
    version: str | None = None
    protocol: int = VERSION

    def headers(self) -> dict[str, str]:
        """Return the identity as headers of a request or a response."""
        said = {MODEL_HEADER: self.model, VERSION_HEADER: self.version, PROTOCOL_HEADER: str(self.protocol)}
        return {name: value for name, value in said.items() if value is not None}


def read_identity(headers: Mapping[str, str]) -> Identity:
    """Read another node's identity from its headers. Raises RouteError if it is invalid.

    Nodes of protocol version 1 sent no protocol version.
    """
    return identity_of(headers.get(MODEL_HEADER), headers.get(VERSION_HEADER), headers.get(PROTOCOL_HEADER))


@lru_cache(maxsize=64)
def identity_of(model: str | None, version: str | None, protocol: str | None) -> Identity:
    """Like `read_identity`, from the values of its three headers, with cached validation."""
    protocol = "1" if protocol is None else protocol
    for name, text in ((MODEL_HEADER, model), (VERSION_HEADER, version)):
        if text is not None and not _TEXT.fullmatch(text):
            raise RouteError(f"{name} is {text[:40]!a}; give 1 to 128 letters, digits and . _ + -.")
    if not (protocol.isascii() and protocol.isdigit() and 0 < len(protocol) <= 4):
        raise RouteError(f"{PROTOCOL_HEADER} is {protocol[:40]!a}; give a number of 1 to 4 digits.")
    return Identity(model, version, int(protocol))


def mismatch(mine: Identity, other: Identity) -> str | None:
    """Return why two nodes cannot answer for each other, None if they can."""
    if not is_neighbour(other.protocol):
        return (
            f"pliant {other.version or 'of unknown version'} {version_refusal(other.protocol)}".removesuffix(
                "."
            )
        )
    if None not in (mine.model, other.model) and mine.model != other.model:
        return (
            f"its model has content hash {_shown(other.model)}, not {_shown(mine.model)}: serve the same "
            "files on both nodes"
        )
    return None


def _shown(model: str | None) -> str:
    return (model or "")[:_SHOWN]
