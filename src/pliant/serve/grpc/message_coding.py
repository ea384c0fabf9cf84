"""Messages of gRPC that were compressed, decompressed up to a limit.

Older versions of the library decompress a whole message, whatever it becomes, before they look at its size.
"""

from pliant.errors import NodeError
from pliant.serve.http.content_coding import Decoder

AS_SENT = ("grpc.per_message_decompression", 0)
"""The option by which the library hands out messages as they came."""
_GZIP = b"\x1f\x8b"
_ZLIB, _ZLIB_CHECK = 8, 31


def decompressed(content: bytes, most_bytes: int) -> bytes:
    """The message that its client sent as `content`, which the library does not say the coding of.

    No request begins as compressed data do: that byte, as a tag, has a wire type that is none (gzip), or is
    of a number (zlib, RFC 1950, 2.2), and numbers come behind texts in all of them. Raises InputError for
    damage, NodeError (413) as soon as the message is longer than `most_bytes`.
    """
    coding = _coding(content)
    if coding is None:
        return content
    decoder, found = Decoder(coding), bytearray()
    for piece in decoder.pieces(content):
        found += piece
        if len(found) > most_bytes:
            raise NodeError(f"the message is longer than {most_bytes} bytes once decompressed.", 413)
    decoder.check_end()
    return bytes(found)


def _coding(content: bytes) -> str | None:
    if content[:2] == _GZIP:
        return "gzip"
    is_zlib = (
        len(content) > 1 and content[0] & 0xF == _ZLIB and int.from_bytes(content[:2]) % _ZLIB_CHECK == 0
    )
    return "deflate" if is_zlib else None
