"""Encode control messages for a peer of this version or of the previous one."""

from pliant.cluster.control import control_frame
from pliant.cluster.control.messages import AnyMessage, UnknownMessage, WireMessage
from pliant.cluster.net.comm import check_name
from pliant.errors import ClusterError
from pliant.ir.envelope import LIMIT_BYTES, VERSION, Envelope, EnvelopeDecoder, EnvelopeError
from pliant.ir.envelope import encode as encode_envelope

_KINDS: EnvelopeDecoder[AnyMessage] = EnvelopeDecoder(WireMessage, UnknownMessage())


def encode(message: AnyMessage, sender: str, incarnation: int, version: int = VERSION) -> bytes:
    """Encode `message` for a peer of `version`; raises ValueError over the size limit."""
    if version == control_frame.OLDEST:
        data = control_frame.pack(message, sender, incarnation)
    else:
        data = encode_envelope(Envelope(VERSION, sender, incarnation, message))
    if len(data) > LIMIT_BYTES:
        kind = message.__struct_config__.tag
        raise ValueError(f"a {kind} of {len(data):,} bytes is over the limit of {LIMIT_BYTES:,}.")
    return data


def decode(data: bytes) -> Envelope[AnyMessage]:
    """Decode the message in `data`. Raises EnvelopeError on anything no neighbouring version would send."""
    found = control_frame.unpack(data) if data.startswith(control_frame.MAGIC) else _KINDS.decode(data)
    try:
        check_name(found.sender)
    except ClusterError as error:
        raise EnvelopeError(f"a message under a name that no member has: {error}") from error
    return found
