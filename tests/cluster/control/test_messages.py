"""Control messages and notes: there and back, and what is none of them."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.control.messages import (
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
    Unknown,
    decode,
    decode_note,
    encode,
    encode_note,
)
from pliant.cluster.net.comm import NOTE_LIMIT_BYTES
from pliant.errors import PeerMisbehaved
from pliant.ir.partition import Grid, Partition, Share
from pliant.ir.topology import Capability, StageTimes

GRID = Grid((("a", "b"),), (5, 7), (12,))
TILED = Partition("2d", "a", (Share("a", 1, 3, 4), Share("b", 2, 2, 4)), 5, GRID)
NOBODY = {"mode": "ws", "primary": "a", "shares": [], "tokens": 5}
CAPABILITY = Capability(1.5, 2e9, 10**9, 1e-5, (StageTimes("attend", ((1e6, 0.1),)),))


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
        (bytes((PROTOCOL + 2,)) + encode(Bye())[1:], "speaks version .* may differ by one. Install the same"),
        (bytes((PROTOCOL + 2,)) + b"\x91" * 100_000, "no message"),
        (bytes((PROTOCOL + 1,)) + b"\x91" * 100_000, "no message"),
        (bytes((PROTOCOL + 1,)) + msgspec.msgpack.encode({"Ready": 1}), "no message"),
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


@pytest.mark.parametrize("version", [PROTOCOL - 1, PROTOCOL, PROTOCOL + 1])
def test_fields_that_are_not_known_here_are_ignored(version: int) -> None:
    """A neighbouring version may append fields, also inside of what a message holds."""
    hello = Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",))
    report = Report(4, (Ran(4, 1, 2, 0.5, 0.75),))
    kind, epoch, spans = msgspec.msgpack.decode(encode(report)[1:])
    for message, fields in (
        (hello, [*msgspec.msgpack.decode(encode(hello)[1:]), "new", {"more": [1]}]),
        (report, [kind, epoch, [[*span, "new"] for span in spans], 3]),
    ):
        assert decode(bytes((version,)) + msgspec.msgpack.encode(fields), "b") == message
    note = Note(1.0, 5, {"attend": 0.1})
    fields = [*msgspec.msgpack.decode(encode_note(note)), {"new": 1}]
    assert decode_note(msgspec.msgpack.encode(fields), "b") == note


def test_fields_that_an_older_version_does_not_send_have_defaults() -> None:
    """A Hello ended after the models once."""
    fields = ["Hello", "1.0", "tcp://127.0.0.1:5", 2, 10**9, ["abc"]]
    data = bytes((PROTOCOL - 1,)) + msgspec.msgpack.encode(fields)
    assert decode(data, "b") == Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",), -1, "zmq")


def test_kinds_that_the_next_version_added_are_ignored_and_no_others() -> None:
    """They are no fault of their sender; of this version they are garbage."""
    body = msgspec.msgpack.encode(["Invented", 1, 2])
    assert decode(bytes((PROTOCOL + 1,)) + body, "b") == Unknown()
    for version in (PROTOCOL, PROTOCOL - 1):
        with pytest.raises(PeerMisbehaved, match="no message"):
            decode(bytes((version,)) + body, "b")


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
