"""Control messages and notes: there and back, and what is none of them."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.comm import NOTE_LIMIT_BYTES
from pliant.cluster.messages import (
    LIMIT_BYTES,
    PROTOCOL,
    AnyMessage,
    Bye,
    Failed,
    Go,
    Hello,
    Measured,
    MeasuredLink,
    Note,
    Prepare,
    Ran,
    Ready,
    Report,
    Status,
    decode,
    decode_note,
    encode,
    encode_note,
)
from pliant.errors import PeerMisbehaved
from pliant.ir.cluster import Capability, Curve
from pliant.ir.partition import Grid, Partition, Share

GRID = Grid((("a", "b"),), (5, 7), (12,))
TILED = Partition("2d", "a", (Share("a", 1, 3, 4), Share("b", 2, 2, 4)), 5, GRID)
NOBODY = {"mode": "ws", "primary": "a", "shares": [], "tokens": 5}
CAPABILITY = Capability(1.5, 2e9, 10**9, 1e-5, (Curve("attend", ((1e6, 0.1),)),))


@pytest.mark.parametrize(
    "message",
    [
        Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",)),
        Measured(2, CAPABILITY, (MeasuredLink("a", "b", 1e-3, 1e8),)),
        Prepare(3, "abc", TILED, "int8", ("p", "a"), {"a": "tcp://127.0.0.1:5"}, "tcp://127.0.0.1:6", True),
        Go(1, 2, 3, ("b",), 1.5),
        Failed(1, 2, None, False, "no memory"),
        Report(4, (Ran(4, 1, 2, 0.5, 0.75),)),
        Bye(),
    ],
)
def test_a_message_comes_back_as_it_was(message: AnyMessage) -> None:
    """Partitions and capabilities travel inside of them."""
    assert decode(encode(message), "b") == message


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_decode_or_name_their_sender(data: bytes) -> None:
    """Whatever a broken or hostile member sends."""
    for raw in (data, bytes((PROTOCOL,)) + data):
        with suppress(PeerMisbehaved):
            decode(raw, "b")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes"),
        (bytes(LIMIT_BYTES + 1), "bytes"),
        (bytes((PROTOCOL + 1,)) + encode(Bye())[1:], "install the same pliant"),
        (bytes((PROTOCOL + 1,)) + b"\x91" * 100_000, "no message"),
        (b"hello", "no message: it begins with 104"),
        (bytes((PROTOCOL,)) + msgspec.msgpack.encode(["Prepare", 1, "m", NOBODY, "fp32", [], {}]), "none of"),
        (bytes((PROTOCOL,)) + msgspec.msgpack.encode(["Nonsense"]), "no message"),
        (bytes((PROTOCOL,)) + b"\x91" * 100_000, "no message"),
        (encode(Status(-5)), "no message"),
        (encode(Ready(1, float("nan"), 0, 0)), "no message"),
        (encode(Measured(1, None, (MeasuredLink("a", "b", 0.1, 0.0),))), "no message"),
        (encode(Measured(1, None, (MeasuredLink("a", "b", float("inf"), 1e6),))), "no message"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_message_is_said(data: bytes, says: str) -> None:
    """The reason stands in the log of whoever refuses it."""
    with pytest.raises(PeerMisbehaved, match=says):
        decode(data, "b")


def test_a_note_fits_its_limit_or_leaves_out_the_links() -> None:
    """A thousand links are no reason to fail a send."""
    note = Note(1.0, 2, {"attend": 0.5}, {f"device{i}": (1, 1.0) for i in range(1000)})
    data = encode_note(note)
    assert len(data) <= NOTE_LIMIT_BYTES
    assert decode_note(data, "b") == Note(1.0, 2, {"attend": 0.5})


@pytest.mark.parametrize(
    "note", [Note(0.0, -1, {}), Note(0.0, 1, {"a": float("nan")}), Note(0.0, 1, {"a": -1})]
)
def test_a_note_that_cannot_be_true_is_refused(note: Note) -> None:
    """Plans are made of these numbers."""
    with pytest.raises(PeerMisbehaved, match="cannot be"):
        decode_note(encode_note(note), "b")
