"""Decompress gRPC messages up to a size limit, and choose the answers that are sent compressed.

Older versions of the gRPC library decompress a whole message before they check its size.
"""

import zlib

from pliant.errors import NodeError
from pliant.serve.http.content_coding import LEAST_BYTES, Decoder

AS_SENT = ("grpc.per_message_decompression", 0)
"""Option that makes the library deliver messages without decompressing them."""
COMPRESSED = ("grpc.default_compression_level", 1)
"""Option that makes the library compress answers by gzip for callers that accept it."""
_GZIP = b"\x1f\x8b"
_ZLIB, _ZLIB_CHECK = 8, 31
_SAMPLE_BYTES, _MOST_LEFT = 4096, 0.75
_MOST_BYTES = 1 << 18


def decompress(content: bytes, most_bytes: int) -> bytes:
    """Decompress a message; the library does not report its encoding, so it is detected from the first bytes.

    No request starts like compressed data: as a protobuf tag, the first byte has an invalid wire type (gzip),
    or that of a number (zlib, RFC 1950, 2.2), while all requests have texts before numbers. Raises InputError
    for damaged data, and NodeError (413) as soon as the message exceeds `most_bytes`.
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


def is_worth_compressing(content: bytes) -> bool:
    """Whether gzip makes an answer of 1 to 256 kB smaller by a quarter, judged by its middle.

    The library has one level, zlib's default, which takes 0.2 s for each megabyte of float32 numbers and
    hardly makes them smaller; it may block other answers meanwhile.
    """
    if not LEAST_BYTES <= len(content) <= _MOST_BYTES:
        return False
    first = max(len(content) - _SAMPLE_BYTES, 0) // 2
    sample = content[first : first + _SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) < _MOST_LEFT * len(sample)


def _coding(content: bytes) -> str | None:
    if content[:2] == _GZIP:
        return "gzip"
    is_zlib = (
        len(content) > 1 and content[0] & 0xF == _ZLIB and int.from_bytes(content[:2]) % _ZLIB_CHECK == 0
    )
    return "deflate" if is_zlib else None
