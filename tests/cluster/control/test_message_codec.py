"""Control messages as bytes of this version and of the one before: there and back, and what is none."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.control import control_frame
from pliant.cluster.control.message_codec import decode, encode
from pliant.cluster.control.messages import (
    AdmissionRefusal,
    AnyMessage,
    Bye,
    Heartbeat,
    Hello,
    LinkMeasurement,
    MeasureReply,
    PrepareRequest,
    SegmentFailure,
    SegmentRequest,
    SpanReport,
    StepSpan,
    UnknownMessage,
    to_device_measurement,
)
from pliant.cluster.net.comm import check_name
from pliant.errors import ClusterError
from pliant.ir.capability import Capability, StageTimes
from pliant.ir.envelope import LIMIT_BYTES, VERSION, EnvelopeError
from pliant.ir.partition import DeviceGrid, Partition, Share

GRID = DeviceGrid((("a", "b"),), (5, 7), (12,))
TILED = Partition("2d", "a", (Share("a", 1, 3, 4), Share("b", 2, 2, 4)), 5, GRID)
NOBODY = {"mode": "ws", "primary": "a", "shares": [], "tokens": 5}
CAPABILITY = Capability(1.5, 2e9, 10**9, 1e-5, (StageTimes("attend", ((1e6, 0.1),)),))
MESSAGES = (
    Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",)),
    MeasureReply(2, to_device_measurement(CAPABILITY), (LinkMeasurement("a", "b", 1e-3, 1e8),)),
    PrepareRequest(
        3, "abc", TILED, "int8", ("p", "a"), {"a": "tcp://127.0.0.1:5"}, "tcp://127.0.0.1:6", True
    ),
    SegmentRequest(1, 2, 3, ("b",), 1.5),
    SegmentFailure(1, 2, None, False, "no memory"),
    SpanReport(4, (StepSpan(4, 1, 2, 0.5, 0.75),)),
    Heartbeat(),
    Bye(),
    AdmissionRefusal("there is another"),
)
BOTH = (VERSION, control_frame.OLDEST)
NAMES = st.text(min_size=1, max_size=60).filter(lambda name: name.split() == [name] and "/" not in name)
DEEP = b"\x91" * 100_000


def enveloped(body: object, version: int = VERSION, name: str = "b") -> bytes:
    return msgspec.msgpack.encode([version, name, 1, body])


def cut_in(data: bytes, body: bytes) -> bytes:
    """An envelope whose body is `body`, which need not be msgpack."""
    return data[: -len(msgspec.msgpack.encode(["Bye"]))] + body


def test_the_version_before_is_the_one_that_letters_are_for() -> None:
    """When the next version comes, letters lose all but the knock and the refusal."""
    assert control_frame.OLDEST == VERSION - 1


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: AnyMessage, version: int) -> None:
    """Partitions and capabilities travel inside of them."""
    found = decode(encode(message, "ada", 1 << 40, version))
    assert (found.version, found.sender, found.incarnation, found.body) == (version, "ada", 1 << 40, message)


@pytest.mark.parametrize("version", BOTH)
@given(name=NAMES, incarnation=st.integers(0, 2**64 - 1))
def test_every_name_and_incarnation_comes_back(version: int, name: str, incarnation: int) -> None:
    """Every field at its limits."""
    found = decode(encode(Heartbeat(), name, incarnation, version))
    assert (found.sender, found.incarnation, found.body) == (name, incarnation, Heartbeat())


def test_a_knock_says_the_newest_version_and_is_a_heartbeat_to_the_version_before() -> None:
    """It knows no envelopes, and ignores what follows the name of a BEAT."""
    found = decode(control_frame.pack_first_heartbeat("ada", 7))
    assert (found.version, found.sender, found.body) == (VERSION, "ada", Heartbeat())
    assert control_frame.pack_first_heartbeat("ada", 7)[:-1] == control_frame.pack(Heartbeat(), "ada", 7)


@given(st.binary(max_size=200), st.data())
def test_no_bytes_do_anything_but_decode_or_be_refused(tail: bytes, data: st.DataObject) -> None:
    """The thread of sockets lives on it: random bytes, or random ones behind the start of a message."""
    whole = data.draw(st.sampled_from([encode(m, "ada", 1, v) for m in MESSAGES for v in BOTH]))
    for raw in (tail, whole[: data.draw(st.integers(0, len(whole)))] + tail):
        with suppress(EnvelopeError):
            decode(raw)


@given(st.data())
def test_a_flipped_byte_is_refused_or_stays_a_message(data: st.DataObject) -> None:
    """A member that lies can say anything; it is a message of the form that there is, or none."""
    raw = bytearray(data.draw(st.sampled_from([encode(m, "ada", 1, v) for m in MESSAGES for v in BOTH])))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(EnvelopeError):
        assert decode(bytes(raw)).sender


@pytest.mark.parametrize("version", BOTH)
def test_a_message_that_is_cut_is_refused(version: int) -> None:
    """Anywhere but behind the name of a heartbeat."""
    whole = encode(SegmentRequest(1, 2, 3, ("b",), 1.5), "ada", 1, version)
    for n in range(len(whole)):
        with pytest.raises(EnvelopeError):
            decode(whole[:n])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "invalid message"),
        (b"hello", "invalid message"),
        (b"plnc", "4 bytes"),
        (bytes(LIMIT_BYTES + 1), "the limit is"),
        (control_frame.MAGIC + bytes(LIMIT_BYTES), "a control frame of 1,048,580 bytes"),
        (DEEP, "invalid message"),
        (cut_in(enveloped(["Bye"]), DEEP), "invalid message"),
        (cut_in(enveloped(["Bye"], VERSION + 1), DEEP), "invalid message"),
        (cut_in(enveloped(["Bye"]), b"\xdd\xff\xff\xff\xff"), "invalid message: .* truncated"),
        (cut_in(enveloped(["Bye"]), b"\x93\xa6Forget\xdd\xff\xff\xff\xff"), "invalid message: .* truncated"),
        (enveloped(["Nonsense"]), "invalid message"),
        (enveloped({"Ready": 1}, VERSION + 1), "invalid message"),
        (enveloped(["Prepare", 1, "m", NOBODY, "fp32", [], {}]), "none of"),
        (enveloped(["Status", -5]), "invalid message"),
        (enveloped(["Ready", 1, float("nan"), 0, 0]), "invalid message"),
        (enveloped(["Measured", 1, None, [["a", "b", 0.1, 0.0]]]), "invalid message"),
        (enveloped(["Measured", 1, None, [["a", "b", float("inf"), 1e6]]]), "invalid message"),
        (enveloped(["Bye"], name=""), "1 to 255 bytes"),
        (enveloped(["Bye"], name="a" * 256), "1 to 255 bytes"),
        (
            control_frame.pack(Heartbeat(), "ada", 1)[:5]
            + b"\xc8"
            + control_frame.pack(Heartbeat(), "ada", 1)[6:],
            "kind 200",
        ),
    ],
)
def test_what_is_wrong_with_a_message_is_said(data: bytes, says: str) -> None:
    """The reason stands in the log of whoever refuses it."""
    with pytest.raises(EnvelopeError, match=says) as refused:
        decode(data)
    assert not refused.value.is_other_version


@pytest.mark.parametrize("version", [VERSION + 2, VERSION + 4, 1, 0, -1])
@pytest.mark.parametrize("body", [["Bye"], ["Invented", 1, {"a": 2}], ["Prepare", 1]])
def test_a_version_that_is_no_neighbour_is_refused_by_name_with_both_versions(
    version: int, body: list[Any]
) -> None:
    """Two releases in one cluster must hear which device to update, whatever else has changed."""
    says = f"'b' speaks version {version} of the protocol, this device version {VERSION}: .* Install the same"
    with pytest.raises(EnvelopeError, match=says) as refused:
        decode(enveloped(body, version))
    assert refused.value.is_other_version


def test_a_far_version_that_knocks_or_sends_words_in_letters_is_refused_by_name() -> None:
    """The knock has one form in all versions, so that this can be said."""
    for data in (
        control_frame.pack_first_heartbeat("b", 1)[:-1] + b"\x07",
        b"plnc\x01\x01" + bytes(8) + b"\x01b\x01\x91\xa3Bye",
    ):
        with pytest.raises(
            EnvelopeError, match=rf"'b' speaks version [17] .* version {VERSION}: "
        ) as refused:
            decode(data)
        assert refused.value.is_other_version


@pytest.mark.parametrize("version", [VERSION, VERSION + 1])
def test_fields_that_are_not_known_here_are_ignored(version: int) -> None:
    """A neighbouring version may append fields, also inside of what a message holds, and to the envelope."""
    hello = Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",))
    report = SpanReport(4, (StepSpan(4, 1, 2, 0.5, 0.75),))
    kind, epoch, spans = msgspec.msgpack.decode(encode(report, "b", 1))[3]
    for message, fields in (
        (hello, [*msgspec.msgpack.decode(encode(hello, "b", 1))[3], "new", {"more": [1]}]),
        (report, [kind, epoch, [[*span, "new"] for span in spans], 3]),
    ):
        assert decode(msgspec.msgpack.encode([version, "b", 1, fields, "new"])).body == message


def test_fields_that_an_older_version_does_not_send_have_defaults() -> None:
    """A Hello ended after the models once."""
    fields = ["Hello", "1.0", "tcp://127.0.0.1:5", 2, 10**9, ["abc"]]
    wanted = Hello("1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",), -1, "zmq")
    assert decode(enveloped(fields)).body == wanted


def test_kinds_that_the_next_version_added_are_ignored_and_no_others() -> None:
    """They are no fault of their sender; of this version they are garbage."""
    assert decode(enveloped(["Invented", 1, 2], VERSION + 1)).body == UnknownMessage()
    with pytest.raises(EnvelopeError, match="invalid message"):
        decode(enveloped(["Invented", 1, 2]))


@pytest.mark.parametrize("kind", ["UnknownMessage", "UnreadableMessage"])
def test_what_is_never_sent_is_not_read(kind: str) -> None:
    """They stand for what a messenger made of bytes."""
    with pytest.raises(EnvelopeError, match="invalid message"):
        decode(enveloped([kind, "why", True]))


@pytest.mark.parametrize("name", ["a" * 1_048_500, "a/" * 500_000])
def test_a_refusal_of_a_long_name_is_short(name: str) -> None:
    """It was too long to be sent, which ended the thread of all connections."""
    with pytest.raises(EnvelopeError) as refused:
        decode(enveloped(["Bye"], name=name))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["my laptop", "attic/cpu", " ", "a\n"])
@pytest.mark.parametrize("version", BOTH)
def test_a_name_that_no_partition_can_hold_is_refused(name: str, version: int) -> None:
    """Taken in, it would fail every plan of the primary; the device itself is told as it starts."""
    with pytest.raises(EnvelopeError, match="no blank and no '/'"):
        decode(encode(Heartbeat(), name, 1, version))
    with pytest.raises(ClusterError, match="give another --name"):
        check_name(name)
