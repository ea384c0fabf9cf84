"""Control messages as bytes, for a peer of this version or of the one before."""

from pliant.cluster.control import letter
from pliant.cluster.control.messages import AnyMessage, Sent, Unknown
from pliant.cluster.net.comm import check_name
from pliant.errors import ClusterError
from pliant.ir.envelope import LIMIT_BYTES, VERSION, BadEnvelope, Envelope, Kinds
from pliant.ir.envelope import encode as encode_envelope

_KINDS: Kinds[AnyMessage] = Kinds(Sent, Unknown())


def encode(message: AnyMessage, sender: str, incarnation: int, version: int = VERSION) -> bytes:
    """`message` for a peer of `version`; raises ValueError when it is over the limit, our own mistake."""
    if version == letter.OLDEST:
        data = letter.pack(message, sender, incarnation)
    else:
        data = encode_envelope(Envelope(VERSION, sender, incarnation, message))
    if len(data) > LIMIT_BYTES:
        kind = type(message).__name__
        raise ValueError(f"a {kind} of {len(data):,} bytes is over the limit of {LIMIT_BYTES:,}.")
    return data


def decode(data: bytes) -> Envelope[AnyMessage]:
    """The message in `data`. Raises BadEnvelope on anything that no neighbouring version would have sent."""
    found = letter.unpack(data) if data.startswith(letter.MAGIC) else _KINDS.decode(data)
    try:
        check_name(found.sender)
    except ClusterError as error:
        raise BadEnvelope(f"a message under a name that no member has: {error}") from error
    return found
