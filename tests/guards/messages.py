"""One message of every kind that members of a cluster, or nodes, send each other, with fixed values.

After a rename of a module only the imports here change.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import msgspec
import numpy as np

from pliant.cluster.control import control_frame
from pliant.cluster.control.message_codec import decode, encode
from pliant.cluster.control.messages import (
    AdmissionRefusal,
    Bye,
    Heartbeat,
    Hello,
    HelloRequest,
    JoinRefusal,
    LinkMeasurement,
    MeasureReply,
    MeasureRequest,
    Note,
    Ping,
    Pong,
    PrepareFailure,
    PrepareRequest,
    PrepareSuccess,
    ReleaseRequest,
    SegmentFailure,
    SegmentRequest,
    SpanReport,
    StatusReply,
    StatusRequest,
    StatusUpdate,
    StepSpan,
    StopRequest,
    Welcome,
    decode_note,
    encode_note,
    to_device_measurement,
)
from pliant.cluster.lead.status_report import ClusterStatus, FaultStatus, MemberStatus, PlanStatus
from pliant.cluster.net.activation_coding import decode as decode_activations
from pliant.cluster.net.activation_coding import encode as encode_activations
from pliant.cluster.net.comm import Tag
from pliant.cluster.net.frame import pack as pack_frames
from pliant.cluster.net.frame import unpack as unpack_frame
from pliant.ir.capability import Capability, Drift, StageTimes
from pliant.ir.curve import Curve
from pliant.ir.dilation import Dilation
from pliant.ir.partition import DeviceGrid, Partition, Share
from pliant.route.curve_advert import CurveAdvert
from pliant.route.node_identity import Identity, read_identity
from pliant.route.node_messages import (
    NodeTime,
    RouteMessage,
    decode_advert,
    decode_packet,
    decode_route,
    encode_advert,
    encode_packet,
    encode_route,
)
from tests.route.routers import only


@dataclass(frozen=True, slots=True)
class Guarded:
    """A value as it is sent, and what comes of the bytes at the other end, which may be coarser."""

    sent: bytes
    read: Callable[[bytes], Any]
    value: Any


_GRID = DeviceGrid((("a", "b"),), (5, 7), (12,))
_TILED = Partition("2d", "a", (Share("a", 1, 3, 4), Share("b", 2, 2, 4)), 5, _GRID)
_WHOLE = Partition("1d", "a", (Share("a", 3, 4, 6), Share("b", 1, 1, 2)), 5)
_CAPABILITY = Capability(
    1.5,
    2e9,
    10**9,
    1e-5,
    (StageTimes("attend", ((1e6, 0.125), (2e6, 0.25))),),
    (Drift("attend", 1.25),),
    Dilation(2.0),
)
_STATUS = ClusterStatus(
    "p",
    "0.1.0",
    "zmq",
    (MemberStatus("a", True, None, 0.5, 10**9, 2, ("abc",), 1, "0.1.0"),),
    PlanStatus("abc", _WHOLE),
    True,
    7,
    1,
    (FaultStatus(1.5, 2, ("b",), ("silent",), 0.25, 0.125),),
    ("c turned away",),
)
CONTROL = (
    Hello("0.1.0", "tcp://127.0.0.1:5", 2, 10**9, ("abc",), 6, "gloo", True, True, True),
    Welcome("0.1.0"),
    JoinRefusal("another key"),
    PrepareRequest(
        3, "abc", _TILED, "int8", ("p", "a"), {"a": "tcp://127.0.0.1:5"}, "tcp://127.0.0.1:6", True
    ),
    PrepareSuccess(3, 0.5, 1000, 10**9),
    PrepareFailure(3, "no memory"),
    MeasureRequest(4, "abc", 128, ("p", "a"), {"a": "tcp://127.0.0.1:5"}, "tcp://127.0.0.1:6"),
    MeasureReply(4, to_device_measurement(_CAPABILITY), (LinkMeasurement("a", "b", 1e-3, 1e8),), "partly"),
    ReleaseRequest((1, 2)),
    SegmentRequest(5, 2, 3, ("b",), 1.5, (4, 9)),
    StopRequest(5),
    SegmentFailure(5, 2, "b", True, "wrong length", True),
    SpanReport(5, (StepSpan(5, 1, 2, 0.5, 0.75),)),
    StatusUpdate(10**9, 5),
    HelloRequest(),
    Ping(0.5),
    Pong(0.5, 0.75),
    Heartbeat(),
    Bye(),
    AdmissionRefusal("another name"),
    StatusRequest(),
    StatusReply(_STATUS),
)
"""Every kind of control message, with a value in every field."""
_NOTE = Note(1.5, 10**9, {"attend": 0.125}, {"b": (4096, 0.25)}, {"b": 2})
_PAYLOAD = np.arange(10, dtype=np.uint8)
_ROWS = np.array([[1.0, -0.5, 0.0], [0.25, 2.0, -2.0]], np.float32)
_CURVE = Curve(((0, 0.01), (100, 0.11)))
_TOLD = CurveAdvert("gw:8080", only(_CURVE), frozenset({"gw:8080", "cloud"}), (1764000000000, 7), 0.25)
_SPENT = NodeTime(0.0125, 0.005)
_ROUTE = RouteMessage(("end", "gw"), 7, "gw", "http://10.0.0.7:8080", (1.0, 0.5), 0.04, 2.0, 0.9, True)
_IDENTITY = Identity("0a1b", "0.1.0")


def guarded() -> dict[str, Guarded]:
    """By name. `cluster ...` goes over a cluster's sockets, `node ...` over HTTP."""
    found = {}
    for message in CONTROL:
        sent = encode(message, "ada", 1 << 40)
        found[f"cluster {message.__struct_config__.tag}"] = Guarded(sent, _read, ("ada", 1 << 40, message))
        sent = encode(message, "ada", 1 << 40, control_frame.OLDEST)
        name = f"cluster {message.__struct_config__.tag}, to version 2"
        found[name] = Guarded(sent, _read, ("ada", 1 << 40, message))
    found["cluster knock"] = Guarded(
        control_frame.pack_first_heartbeat("ada", 1 << 40), _read, ("ada", 1 << 40, Heartbeat())
    )
    found["cluster note"] = Guarded(encode_note(_NOTE), lambda data: decode_note(data, "x"), _NOTE)
    (frame,) = pack_frames("ada", Tag(5, 2, 3), _PAYLOAD, b"note")
    found["cluster frame"] = Guarded(
        bytes(frame), _frame, ("ada", (5, 2, 3), 10, 0, b"note", bytes(_PAYLOAD))
    )
    for coding in ("fp32", "fp16", "int8"):
        sent = encode_activations(_ROWS, coding).tobytes()
        found[f"cluster activations {coding}"] = Guarded(sent, _activations(coding), _rounded(coding))
    found |= {
        "node word": Guarded(encode_advert(_TOLD, _SPENT).encode(), decode_advert, (_TOLD, _SPENT)),
        "node word, as a broadcast": Guarded(encode_advert(_TOLD).encode(), decode_advert, (_TOLD, None)),
        "node route": Guarded(encode_route(_ROUTE).encode(), decode_route, _ROUTE),
        "node route, empty": Guarded(encode_route(RouteMessage()).encode(), decode_route, RouteMessage()),
        "node identity": Guarded(_lines(_IDENTITY.headers()), _identity, _IDENTITY),
        "node packet of Figure 7": Guarded(
            encode_packet(b"payload", 10.5, Curve(((0, 0.25), (100, 0.5)))),
            lambda data: decode_packet(data, 7),
            (b"payload", 10.5, Curve(((0, 0.25), (100, 0.5)))),
        ),
    }
    return found


_HELLO = CONTROL[0]
FORMER: Mapping[str, Mapping[str, tuple[Callable[[bytes], Any], Any]]] = {
    version: {
        "cluster letter BEAT": (lambda data: _read(data), ("ada", 1 << 40, Heartbeat())),
        "cluster letter BYE": (lambda data: _read(data), ("ada", 1 << 40, Bye())),
        "cluster letter NO": (lambda data: _read(data), ("ada", 1 << 40, AdmissionRefusal("body"))),
        "node word, to protocol 1": (
            decode_advert,
            (
                CurveAdvert(_TOLD.node, only(_CURVE.plus(0.25)), _TOLD.through, _TOLD.stamp),
                NodeTime(0.0125),
            ),
        ),
        "node identity": (lambda data: _identity(data), Identity("0a1b", "0.1.0", 2)),
        "cluster Go": (lambda data: _read(data), ("ada", 1 << 40, SegmentRequest(5, 2, 3, ("b",), 1.5))),
        "cluster Failed": (
            lambda data: _read(data),
            ("ada", 1 << 40, SegmentFailure(5, 2, "b", True, "wrong length")),
        ),
        "cluster note": (lambda data: decode_note(data, "x"), msgspec.structs.replace(_NOTE, n_arrived={})),
        **more,
    }
    for version, more in {
        "v0_1": {
            "cluster Hello": (
                lambda data: _read(data),
                (
                    "ada",
                    1 << 40,
                    msgspec.structs.replace(
                        _HELLO, holds_codes=False, holds_submodels=False, packs_texts=False
                    ),
                ),
            )
        },
        "v0_1_protocol_2": {
            "cluster Hello": (
                lambda data: _read(data),
                ("ada", 1 << 40, msgspec.structs.replace(_HELLO, holds_submodels=False, packs_texts=False)),
            )
        },
    }.items()
}
"""By released version, how its messages are read that today's code does not send, or not so."""


def _read(data: bytes) -> tuple[Any, ...]:
    envelope = decode(data)
    return envelope.sender, envelope.incarnation, envelope.body


def _frame(data: bytes) -> tuple[Any, ...]:
    src, piece = unpack_frame(memoryview(data))
    return src, astuple(piece.tag), piece.n_bytes, piece.offset, piece.note, bytes(piece.payload)


def _activations(coding: Any) -> Callable[[bytes], np.ndarray]:
    def read(data: bytes) -> np.ndarray:
        into = np.empty_like(_ROWS)
        decode_activations(np.frombuffer(data, np.uint8), coding, into)
        return into

    return read


def _rounded(coding: str) -> np.ndarray:
    """What the other end has of _ROWS, worked out here: float16 holds them exactly, int8 in 127 steps."""
    if coding != "int8":
        return _ROWS
    steps = np.abs(_ROWS).max(axis=1, keepdims=True) / np.float32(127)
    return np.asarray(np.rint(_ROWS / steps) * steps, np.float32)


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def _identity(data: bytes) -> Identity:
    return read_identity(dict(line.split(": ") for line in data.decode().splitlines()))
