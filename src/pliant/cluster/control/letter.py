"""The envelope of a control message as bytes: its kind, its sender, the sender's incarnation.

Little-endian: magic (4), version (1), kind (1), the sender's incarnation (8), length of its name (1),
the name, the body.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from pliant.cluster.control.versions import is_neighbour, refusal
from pliant.cluster.net.comm import check_name
from pliant.errors import ClusterError

VERSION = 1

_MAGIC = b"plnc"
_HEAD = struct.Struct("<4sBBQB")


class Kind(IntEnum):
    """I am here; here is something to read; I leave; you are not admitted (the body says why)."""

    BEAT = 0
    WORD = 1
    BYE = 2
    NO = 3


class BadLetter(Exception):  # noqa: N818
    """These bytes are no control message that this version understands."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One control message. `incarnation` differs between two processes that use the same name."""

    kind: Kind
    name: str
    incarnation: int
    body: bytes = b""

    def packed(self) -> bytes:
        name = self.name.encode()
        return _HEAD.pack(_MAGIC, VERSION, self.kind, self.incarnation, len(name)) + name + self.body


def unpack(data: bytes) -> Letter:
    """The letter in `data`. Raises BadLetter on anything that `packed` would not have made.

    A kind that a later, neighbouring version added counts as a heartbeat.
    """
    if len(data) < _HEAD.size:
        raise BadLetter(f"{len(data)} bytes are no control message")
    magic, version, kind, incarnation, n_name = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise BadLetter("a control message that does not begin as one of pliant's")
    name = data[_HEAD.size : _HEAD.size + n_name]
    if not is_neighbour(VERSION, version):  # the name stands where it does in all, so that it can be said
        raise BadLetter(f"{name.decode('utf-8', 'replace')!r} {refusal(VERSION, version)}")
    if version > VERSION and kind not in tuple(Kind):
        kind = Kind.BEAT
    if kind not in tuple(Kind) or not n_name or len(name) != n_name:
        raise BadLetter(f"a control message of unknown form (kind {kind}, {len(data)} bytes)")
    said = name.decode("utf-8", "replace")
    try:
        check_name(said)
    except ClusterError as error:
        raise BadLetter(str(error)) from error
    return Letter(Kind(kind), said, incarnation, data[_HEAD.size + n_name :])
