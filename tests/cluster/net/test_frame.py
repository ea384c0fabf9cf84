"""Data messages as bytes: whole again, or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.net.comm import Tag
from pliant.cluster.net.frame import LEAST_PIECE_BYTES, PIECE_BYTES, BadFrame, pack, piece_bytes, unpack
from pliant.ir.envelope import VERSION

_FRAME = bytes(next(pack("ada", Tag(1, 2, 3), np.arange(10, dtype=np.uint8), b"note")))


@given(
    st.text(min_size=1, max_size=60), st.tuples(*[st.integers(0, 2**63 - 1)] * 3), st.binary(), st.binary()
)
def test_what_was_packed_is_unpacked(
    name: str, tag: tuple[int, int, int], payload: bytes, note: bytes
) -> None:
    """Every field at its limits."""
    [frame] = pack(name, Tag(*tag), np.frombuffer(payload, np.uint8), note)
    src, piece = unpack(memoryview(frame))
    assert (src, piece.tag, piece.note, bytes(piece.payload)) == (name, Tag(*tag), note, payload)
    assert (piece.n_bytes, piece.offset) == (len(payload), 0)


@pytest.mark.parametrize("most", [LEAST_PIECE_BYTES, 8 * LEAST_PIECE_BYTES, 8 * PIECE_BYTES, 1_000_000])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_pieces_of_a_long_message_are_the_message(most: int, more: int) -> None:
    """Nothing is lost where they meet, and the note travels once."""
    n = most + more
    payload = np.random.default_rng(0).integers(0, 256, n, dtype=np.uint8)
    pieces = [unpack(memoryview(f))[1] for f in pack("ada", Tag(0, 0, 0), payload, b"note")]
    assert b"".join(p.payload for p in pieces) == payload.tobytes()
    assert [p.note for p in pieces] == [b"note"] + [b""] * (len(pieces) - 1)
    assert len(pieces) == -(-n // piece_bytes(n))
    assert {p.n_bytes for p in pieces} == {n}


def test_a_message_comes_in_some_eight_pieces_neither_tiny_nor_long() -> None:
    """Both ends find the length from the message's alone, so it is part of the format."""
    kib = [(0, 32), (1, 32), (112, 32), (256, 32), (257, 64), (512, 64), (513, 128), (65536, 128)]
    assert [(n, piece_bytes(n << 10) >> 10) for n, _ in kib] == kib


@pytest.mark.parametrize("n", range(len(_FRAME)))
def test_a_cut_frame_is_refused(n: int) -> None:
    """Short in the head, the name, the note or the payload."""
    with pytest.raises(BadFrame):
        unpack(memoryview(_FRAME[:n]))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Nothing else than BadFrame may come out: the reader's thread lives on it."""
    with pytest.raises(BadFrame):
        unpack(memoryview(data))


@given(st.data())
def test_a_flipped_byte_is_refused_or_stays_a_message(data: st.DataObject) -> None:
    """A member that lies can choose any head; it still costs no more than its bytes."""
    frame = bytearray(_FRAME)
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        _, piece = unpack(memoryview(frame))
    except BadFrame:
        return
    assert len(piece.payload) <= len(frame)


def test_another_version_is_refused_as_such() -> None:
    """Two releases in one cluster must hear which."""
    frame = bytearray(_FRAME)
    frame[4] = 9
    with pytest.raises(BadFrame, match=f"version 9 of the protocol, this device version {VERSION}"):
        unpack(memoryview(frame))
