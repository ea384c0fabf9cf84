"""The envelope of a message: the protocol version, the sender, and the body.

Members of a cluster and nodes share one version. Between members, a message is a msgpack array of version,
sender, the sender's incarnation and the body, a tagged array; a tensor's frame has the version in its head.
Between nodes, over HTTP, one header has the version, the name of another header is the kind of the body,
which is JSON.

The next version may append fields and add kinds: devices ignore unknown ones, so neighbouring versions work
together and devices can be upgraded one after another. A change that is incompatible with the previous
version, such as another way to cut a layer into steps, skips a number.
"""

from typing import Any, Generic, TypeVar, final, get_args

import msgspec

from pliant.errors import PliantError

VERSION = 3
"""Version 2 had no envelope: `cluster/control/control_frame.py` has its form."""
LIMIT_BYTES = 1 << 20
"""Maximum message size: the spans of a run on a thousand lanes fit, a tensor does not."""
Body = TypeVar("Body")


class Envelope(msgspec.Struct, Generic[Body], frozen=True, array_like=True):
    """One message. `incarnation` differs between two processes that use the same name."""

    version: int
    sender: str
    incarnation: int
    body: Body


class EnvelopeError(Exception):
    """Raised for bytes that are not a message, or of a non-neighbouring version (`is_other_version`)."""

    def __init__(self, why: str, *, is_other_version: bool = False) -> None:
        super().__init__(why)
        self.is_other_version = is_other_version


class _Head(msgspec.Struct, array_like=True):
    version: int
    sender: str
    incarnation: int
    body: msgspec.Raw


class _Kind(msgspec.Struct, array_like=True):
    kind: str


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(_Head)
_kinds = msgspec.msgpack.Decoder(_Kind)


def encode(envelope: Envelope[Any]) -> bytes:
    """Encode `envelope`; the caller checks LIMIT_BYTES."""
    return _encoder.encode(envelope)


@final
class EnvelopeDecoder(Generic[Body]):
    """Decodes envelopes with bodies of `union`; a kind of a later version is decoded as `unknown`."""

    def __init__(self, union: Any, unknown: Body) -> None:
        self._unknown = unknown
        self._known = frozenset(kind.__struct_config__.tag for kind in get_args(union))
        self._decoder: msgspec.msgpack.Decoder[Envelope[Body]] = msgspec.msgpack.Decoder(Envelope[union])

    def decode(self, data: bytes) -> Envelope[Body]:
        """Decode the message in `data`. Raises only EnvelopeError, with the reason."""
        if len(data) > LIMIT_BYTES:
            raise EnvelopeError(f"a message of {len(data):,} bytes: the limit is {LIMIT_BYTES:,}")
        try:
            found = self._decoder.decode(data)
        except (msgspec.DecodeError, PliantError, ValueError, RecursionError) as error:
            return self._of_later_version(data, error)
        check_version(found.sender, found.version)
        return found

    def _of_later_version(self, data: bytes, error: Exception) -> Envelope[Body]:
        """The unknown kind if a later version explains the decoding error; otherwise raise EnvelopeError."""
        try:
            head = _heads.decode(data)
            kind = _kinds.decode(head.body).kind
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise EnvelopeError(f"an invalid message: {error}") from error
        check_version(head.sender, head.version)
        if head.version > VERSION and kind not in self._known:
            return Envelope(head.version, head.sender, head.incarnation, self._unknown)
        raise EnvelopeError(f"an invalid message: {error}") from error


def is_neighbour(version: int) -> bool:
    """Return whether this version works with `version`: the same, the previous or the next one."""
    return abs(version - VERSION) <= 1


def version_refusal(version: int) -> str:
    """Return the error text for a version that is not a neighbour."""
    return (
        f"speaks version {version} of the protocol, this device version {VERSION}: versions may differ by "
        "one. Install the same pliant on both."
    )


def check_version(sender: str, version: int) -> None:
    """Raise EnvelopeError for a message whose version is not a neighbour."""
    if not is_neighbour(version):
        raise EnvelopeError(f"{sender!r:.80} {version_refusal(version)}", is_other_version=True)
