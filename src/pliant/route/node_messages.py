"""The messages between nodes as text in headers and bodies, and their sizes (CRIME Figure 7).

Two headers accompany a request and its response of the Open Inference Protocol; both hold compact JSON in
ASCII. `Pliant-Route` is sent with a request: its trail, its sender, and its terms. `Pliant-Curve` is sent
with a response, and is the body of a ping's answer and of a broadcast: the node's advert and the time that it
spent on the request. A separate header has the version (`node_identity`), by the rules of `ir/envelope.py`.
Decoders ignore unknown fields, and raise RouteError or PeerCurveError for other errors.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeVar

import msgspec

from pliant.errors import PeerCurveError, RouteError
from pliant.ir.curve import MAX_POINTS, Curve, parse_curve
from pliant.ir.endpoint import ServiceLevel
from pliant.route.choice.objective import Objective
from pliant.route.curve_advert import MAX_LEVELS, NAME, CurveAdvert, Trail

ROUTE_HEADER = "Pliant-Route"
CURVE_HEADER = "Pliant-Curve"
LIMIT_BYTES = 8192
"""Maximum length of a header or body; a curve of 64 points takes under 2,000."""
_MAX_PATH = 64
_MAX_THROUGH = 128

Name = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{NAME.pattern})\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Weight = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
M = TypeVar("M")
_NOTHING = msgspec.Raw(b"")
_MOST_KNOWN = 64
"""Cache size for levels and curves of messages, which seldom change."""
_LevelFields = tuple[float | None, float, bytes, bytes]
"""A `LevelMessage` as a tuple."""
_ONE_LEVEL: tuple[_LevelFields, ...] = ((None, 1.0, b"", b""),)


class RouteMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request's trail; its sender, and that node's address for broadcasts, if it has one.

    `deadline_s` is the rest of the source's deadline, minus the time of the way back; with `best_effort` a
    late answer is accepted. The sender waits for `patience_s` and then tries another node, so a node that
    forwards the request waits for less.
    """

    path: Annotated[tuple[Name, ...], msgspec.Meta(max_length=_MAX_PATH)] = ()
    hops_left: Annotated[int, msgspec.Meta(ge=0, le=_MAX_PATH)] = 0
    sender: Name | None = None
    address: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    objective: tuple[Weight, Weight] | None = None
    deadline_s: Weight | None = None
    patience_s: Weight | None = None
    accuracy_floor: Fraction | None = None
    best_effort: bool = False

    @property
    def trail(self) -> Trail:
        return Trail(self.path, self.hops_left)

    @property
    def wanted(self) -> Objective | None:
        return None if self.objective is None else Objective(*self.objective)


class LevelMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ServiceLevel` in a message; the curve of the most accurate one is `CurveMessage.points`."""

    accuracy: Fraction | None = None
    fidelity: Fraction = 1.0
    points: msgspec.Raw = _NOTHING
    bound: msgspec.Raw = _NOTHING


class CurveMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's advert in a message, with the times of the request that it answers, by the node's clock.

    `spent_s` is the total time of the request there, except reading and writing it; `waited_s` is its
    queueing part, there or further upstream. `wait_s` is the queue (`CurveAdvert`). `points` are those of the
    most accurate level, the only ones that nodes without support for levels read.
    """

    node: Name
    points: msgspec.Raw
    through: Annotated[tuple[Name, ...], msgspec.Meta(max_length=_MAX_THROUGH)]
    stamp: tuple[Count, Count] = (0, 0)
    wait_s: Weight | None = None
    spent_s: Weight | None = None
    waited_s: Weight | None = None
    levels: Annotated[tuple[LevelMessage, ...], msgspec.Meta(max_length=MAX_LEVELS)] = ()


def encode_route(message: RouteMessage) -> str:
    """Encode the value of `Pliant-Route`."""
    return msgspec.json.encode(message).decode("ascii")


def decode_route(text: str | bytes) -> RouteMessage:
    """Decode `Pliant-Route`. Raises RouteError if `text` is invalid."""
    message = _decode(text, _ROUTE, ROUTE_HEADER)
    if len(set(message.path)) != len(message.path):
        raise RouteError(f"{ROUTE_HEADER} names a node twice in {' -> '.join(message.path)}.")
    return message


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The time of a request at a node, by that node's clock: `seconds`, including `waited_s` in a queue."""

    seconds: float
    waited_s: float = 0.0


def encode_advert(advert: CurveAdvert, spent: NodeTime | None = None) -> str:
    """Encode the value of `Pliant-Curve`, of ping answers and of broadcasts. Times keep seven digits."""
    message = CurveMessage(
        advert.node,
        _points(advert.curve),
        tuple(sorted(advert.through)),
        advert.stamp,
        float(f"{advert.wait_s:.7g}") or None,
        None if spent is None else float(f"{spent.seconds:.9g}"),
        None if spent is None else float(f"{spent.waited_s:.9g}") or None,
        _levels(advert.levels),
    )
    return msgspec.json.encode(message).decode("ascii")


def decode_advert(text: str | bytes) -> tuple[CurveAdvert, NodeTime | None]:
    """Return (the sender's advert, its time for the request). Raises PeerCurveError if either is invalid."""
    try:
        message = _decode(text, _CURVE, CURVE_HEADER)
        fields = [(one.accuracy, one.fidelity, bytes(one.points), bytes(one.bound)) for one in message.levels]
        levels = _levels_of(bytes(message.points), tuple(fields))
    except (RouteError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise PeerCurveError(str(error)) from error
    through = frozenset((*message.through, message.node))
    seconds = message.spent_s
    spent = None if seconds is None else NodeTime(seconds, min(message.waited_s or 0.0, seconds))
    return CurveAdvert(message.node, levels, through, message.stamp, message.wait_s or 0.0), spent


@lru_cache(maxsize=_MOST_KNOWN)
def _levels(levels: tuple[ServiceLevel, ...]) -> tuple[LevelMessage, ...]:
    """Return the levels; empty if there is only a curve."""
    if levels == (ServiceLevel(levels[-1].curve),):
        return ()
    return tuple(
        LevelMessage(
            level.accuracy,
            level.fidelity,
            _NOTHING if level is levels[-1] else _points(level.curve),
            _NOTHING if level.bound is None else _points(level.bound),
        )
        for level in levels
    )


@lru_cache(maxsize=_MOST_KNOWN)
def _levels_of(best: bytes, fields: tuple[_LevelFields, ...]) -> tuple[ServiceLevel, ...]:
    """Decode a message's levels, whose most accurate one has the points `best`; cached."""
    levels = tuple(
        ServiceLevel(_curve(points or best), accuracy, _curve(bound) if bound else None, fidelity)
        for accuracy, fidelity, points, bound in fields or _ONE_LEVEL
    )
    qualities = [level.quality for level in levels]
    if fields and (fields[-1][2] or qualities != sorted(qualities)):
        raise PeerCurveError(f"a peer's levels have the qualities {qualities}; expected them to rise.")
    return levels


@lru_cache(maxsize=_MOST_KNOWN)
def _points(curve: Curve) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode([(n, float(f"{t:.7g}")) for n, t in curve.points]))


def _curve(points: bytes) -> Curve:
    return parse_curve(msgspec.json.decode(points), MAX_POINTS)


def encode_packet(payload: bytes, received_s: float, curve: Curve) -> bytes:
    """Encode Figure 7's response: payload, 8 bytes of whole seconds, 4 of their fraction, 8 per point."""
    whole = int(received_s // 1)
    head = struct.pack("!qf", whole, received_s - whole)
    return payload + head + b"".join(struct.pack("!if", n, t) for n, t in curve.points)


def decode_packet(packet: bytes, payload_bytes: int) -> tuple[bytes, float, Curve]:
    """Return (payload, time of reception, curve) of Figure 7. Raises PeerCurveError if it is malformed."""
    rest = packet[payload_bytes:]
    if payload_bytes < 0 or len(packet) < payload_bytes + 12 or (len(rest) - 12) % 8:
        raise PeerCurveError(
            f"a response of {len(packet)} bytes is not a payload of {payload_bytes}, 12 bytes of time and "
            "pairs of 8."
        )
    whole, fraction = struct.unpack_from("!qf", rest)
    points = [struct.unpack_from("!if", rest, at) for at in range(12, len(rest), 8)]
    return packet[:payload_bytes], whole + fraction, parse_curve(points, MAX_POINTS)


_ROUTE = msgspec.json.Decoder(RouteMessage)
_CURVE = msgspec.json.Decoder(CurveMessage)


def _decode(text: str | bytes, decoder: "msgspec.json.Decoder[M]", what: str) -> M:
    size = len(text)
    if size > LIMIT_BYTES:
        raise RouteError(f"{what} has {size} bytes; at most {LIMIT_BYTES} are read.")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RouteError(f"{what} cannot be read: {error}") from error
