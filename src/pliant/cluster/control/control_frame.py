"""Control frames: the messages sent before both members agree on a version, and all messages of version 2.

A frame is little-endian: magic (4), form (1), kind (1), the sender's incarnation (8), length of its name
(1), the name, the body. Two frames have the same form in every version: the first heartbeat, whose
body is the newest version that the sender supports (version 2 sends none), and the refusal. Both sides
then use the older of their newest versions. In version 2 a MESSAGE has a byte 2 and a tagged msgpack array.
"""

import struct
from enum import IntEnum

import msgspec

from pliant.cluster.control.messages import AdmissionRefusal, AnyMessage, Bye, Heartbeat, WireMessage
from pliant.errors import PliantError
from pliant.ir.envelope import LIMIT_BYTES, VERSION, Envelope, EnvelopeError, check_version

OLDEST = 2
"""The version without an envelope."""
MAGIC = b"plnc"

_FORM = 1
_HEAD = struct.Struct("<4sBBQB")


class FrameKind(IntEnum):
    """`BYE`: the sender leaves. `REFUSAL`: not admitted; the body is the reason."""

    HEARTBEAT = 0
    MESSAGE = 1
    BYE = 2
    REFUSAL = 3


_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(WireMessage)


def pack_first_heartbeat(name: str, incarnation: int) -> bytes:
    """Return a heartbeat that a member of any version can read."""
    return _packed(FrameKind.HEARTBEAT, name, incarnation, bytes((VERSION,)))


def pack(message: AnyMessage, name: str, incarnation: int) -> bytes:
    """Encode `message` for a member of version 2."""
    match message:
        case Heartbeat():
            return _packed(FrameKind.HEARTBEAT, name, incarnation, b"")
        case Bye():
            return _packed(FrameKind.BYE, name, incarnation, b"")
        case AdmissionRefusal(reason=reason):
            return _packed(FrameKind.REFUSAL, name, incarnation, reason.encode())
        case _:
            return _packed(FrameKind.MESSAGE, name, incarnation, bytes((OLDEST,)) + _encoder.encode(message))


def unpack(data: bytes) -> Envelope[AnyMessage]:
    """Decode the message in a frame; its version is the one to answer in.

    Raises EnvelopeError for anything that no version would have sent.
    """
    if not _HEAD.size <= len(data) <= LIMIT_BYTES:
        raise EnvelopeError(f"a control frame of {len(data):,} bytes: it has {_HEAD.size} to {LIMIT_BYTES:,}")
    _, form, kind, incarnation, n_name = _HEAD.unpack_from(data)
    name, body = data[_HEAD.size : _HEAD.size + n_name], data[_HEAD.size + n_name :]
    said = name.decode("utf-8", "replace")
    if form != _FORM or kind not in tuple(FrameKind) or len(name) != n_name:
        raise EnvelopeError(f"a control frame of unknown form ({form}, kind {kind}, {len(data):,} bytes)")
    is_knock = kind == FrameKind.HEARTBEAT and len(body) == 1
    version = body[0] if is_knock or (kind == FrameKind.MESSAGE and body) else OLDEST
    if kind != FrameKind.REFUSAL:  # a refusal holds its own reason
        check_version(said, version)
    return Envelope(min(version, VERSION), said, incarnation, _message(FrameKind(kind), body))


def _message(kind: FrameKind, body: bytes) -> AnyMessage:
    match kind:
        case FrameKind.HEARTBEAT:
            return Heartbeat()
        case FrameKind.BYE:
            return Bye()
        case FrameKind.REFUSAL:
            return AdmissionRefusal(body.decode("utf-8", "replace"))
        case FrameKind.MESSAGE:
            try:
                return _messages.decode(memoryview(body)[1:])
            except (msgspec.DecodeError, PliantError, ValueError, RecursionError) as error:
                raise EnvelopeError(f"an invalid message: {error}") from error


def _packed(kind: FrameKind, name: str, incarnation: int, body: bytes) -> bytes:
    said = name.encode()
    return _HEAD.pack(MAGIC, _FORM, kind, incarnation, len(said)) + said + body
