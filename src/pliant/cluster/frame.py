"""A data message as bytes: a head, the sender's name, the note, the payload. Knows no socket.

Byte order is little-endian. The head is magic (4), version (1), length of the name (1) and of the note
(2), then epoch, segment, step and the length of the payload (8 each).
"""

import struct

import numpy as np

from pliant.cluster.comm import NAME_LIMIT_BYTES, NOTE_LIMIT_BYTES, Tag
from pliant.cluster.mailbox import Message

VERSION = 1

_MAGIC = b"plnt"
_HEAD = struct.Struct("<4sBBHqqqq")
# What a message may have beside its payload.
MORE_BYTES = _HEAD.size + NAME_LIMIT_BYTES + NOTE_LIMIT_BYTES


class BadFrame(Exception):  # noqa: N818
    """These bytes are no message; `src` is who sent them, if that can be told."""

    def __init__(self, message: str, src: str | None = None) -> None:
        super().__init__(message)
        self.src = src


def pack(src: str, tag: Tag, payload: np.ndarray, note: bytes) -> bytearray:
    """One message; `payload` is uint8 [n] and is copied."""
    name = src.encode()
    head = _HEAD.pack(_MAGIC, VERSION, len(name), len(note), tag.epoch, tag.segment, tag.step, payload.nbytes)
    frame = bytearray(len(head) + len(name) + len(note) + payload.nbytes)
    front = head + name + note
    frame[: len(front)] = front
    if payload.nbytes:
        memoryview(frame)[len(front) :] = payload.data
    return frame


def unpack(frame: memoryview) -> tuple[str, Tag, Message]:
    """Sender, tag and message; the payload stays in `frame`.

    Raises BadFrame on anything that `pack` would not have made.
    """
    if len(frame) < _HEAD.size:
        raise BadFrame(f"{len(frame)} bytes are no message: a head alone has {_HEAD.size}")
    magic, version, n_name, n_note, epoch, segment, step, n_bytes = _HEAD.unpack_from(frame)
    if magic != _MAGIC:
        raise BadFrame("a message that does not begin as one of pliant's")
    if version != VERSION:  # what follows may mean anything
        raise BadFrame(f"a message of version {version}; this device speaks version {VERSION}")
    note_at = _HEAD.size + n_name
    payload_at = note_at + n_note
    src = bytes(frame[_HEAD.size : note_at]).decode("utf-8", "replace")
    if n_note > NOTE_LIMIT_BYTES or n_bytes != len(frame) - payload_at:
        said = f"{n_note:,} bytes of note and {n_bytes:,} of payload"
        raise BadFrame(f"a message of {len(frame):,} bytes that promises {said}", src)
    try:
        tag = Tag(epoch, segment, step)
    except ValueError as error:
        raise BadFrame(str(error), src) from error
    return src, tag, Message(frame[payload_at:], n_bytes, bytes(frame[note_at:payload_at]))
