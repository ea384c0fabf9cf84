"""What is encoded is decoded; anything else is refused by name."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import PeerCurveError, RouteError
from pliant.ir.curve import MAX_POINTS, Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.route.advert_cache import advert_of
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.objective import Objective
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.node_messages import (
    LIMIT_BYTES,
    NodeTime,
    RouteMessage,
    decode_advert,
    decode_packet,
    decode_route,
    encode_advert,
    encode_packet,
    encode_route,
)
from tests.ir.test_curve import curves
from tests.route.routers import only
from tests.route.test_choose_level import levels

GOOD = {"node": "a", "points": [[0, 0.5], [9, 1]], "through": ["b"], "stamp": [7, 1], "spent_s": 0.25}


def changed(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


@given(curves(), st.floats(0, 100))
def test_a_word_comes_back_to_seven_digits(curve: Curve, spent_s: float) -> None:
    """A float of Figure 7 has no more."""
    told = CurveAdvert("gw:8080", only(curve), frozenset({"gw:8080", "cloud"}), (3, 4))
    back, spent = decode_advert(encode_advert(told, NodeTime(spent_s, spent_s / 2.0)))
    assert (back.node, back.through, back.stamp) == (told.node, told.through, told.stamp)
    assert [n for n, _ in back.curve.points] == [n for n, _ in curve.points]
    assert [t for _, t in back.curve.points] == pytest.approx([t for _, t in curve.points], rel=1e-6)
    assert spent is not None
    assert (spent.seconds, spent.waited_s) == pytest.approx((spent_s, spent_s / 2.0), rel=1e-8)


def test_a_wait_comes_back_and_is_no_longer_than_the_time_spent() -> None:
    """More would make work of less than no time."""
    told = CurveAdvert("a", only(Curve(((0, 1.0),))), frozenset({"a"}), wait_s=0.25)
    back, spent = decode_advert(encode_advert(told, NodeTime(1.0, 3.0)))
    assert (back.wait_s, spent) == (0.25, NodeTime(1.0, 1.0))


def test_a_word_without_a_request_says_no_time_spent() -> None:
    """A broadcast answers nothing."""
    assert (
        decode_advert(encode_advert(CurveAdvert("a", only(Curve(((0, 1.0),))), frozenset({"a"}))))[1] is None
    )


def test_who_speaks_is_among_those_its_curve_depends_on() -> None:
    """Whether it says so or not."""
    assert decode_advert(changed())[0].through == {"a", "b"}


def test_levels_that_were_told_before_are_the_same_objects() -> None:
    """They change seldom: reading them took most of a message's time, and comparing them more."""
    one, other = (decode_advert(changed(stamp=[7, n], wait_s=0.5 * n))[0] for n in range(2))
    assert one.levels is other.levels
    assert (one.wait_s, other.wait_s) == (0.0, 0.5)
    assert decode_advert(changed(points=[[0, 0.25]]))[0].levels != one.levels


def test_the_longest_word_fits_a_header() -> None:
    """64 points, 8 names."""
    curve = Curve(tuple((n * 7919, 1.2345678 * (n + 1)) for n in range(MAX_POINTS)))
    text = encode_advert(
        CurveAdvert("n" * 64, only(curve), frozenset(c * 64 for c in "abcdefgh"), (2**52, 2**52)),
        NodeTime(1 / 3),
    )
    assert len(text) < LIMIT_BYTES / 2
    assert text.isascii()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "\x00",
        "[" * 5000,
        "x" * (LIMIT_BYTES + 1),
        b"\xff\xfe",
        changed(node=""),
        changed(node="a b"),
        changed(node="a" * 65),
        changed(node=3),
        changed(points=[]),
        changed(points=[[0, -1]]),
        changed(points=[[2, 1], [1, 1]]),
        changed(points=[[0, float("nan")]]),
        changed(points=[[0, 1e999]]),
        changed(points=[[n, 1] for n in range(MAX_POINTS + 1)]),
        changed(points={"0": 1}),
        changed(through=["a\n"]),
        changed(through=["a"] * 1000),
        changed(stamp=[-1, 0]),
        changed(stamp=[1]),
        changed(spent_s=-1),
        changed(spent_s="1"),
        changed(points="?").replace("?", "\\xff").encode("latin-1").replace(b"\\xff", b"\xff"),
    ],
)
def test_a_word_that_cannot_be_is_refused(text: str | bytes) -> None:
    """From a peer that lies, or is of another version: one error, never another."""
    with pytest.raises(PeerCurveError):
        decode_advert(text)


V1_WORD = (
    b'{"node":"gw:8080","points":[[0,0.01],[100,0.11]],"through":["gw:8080","cloud"],"stamp":[1764000000000,7],'
    b'"spent_s":0.0125}'
)
V1_ROUTE = (
    b'{"path":["end"],"hops_left":7,"sender":"end","address":"http://10.0.0.7:8080","deadline_s":0.04,'
    b'"patience_s":2.0,"accuracy_floor":0.9}'
)


def test_messages_of_the_release_before_are_read() -> None:
    """An upgrade reaches one node after the other; these are the bytes that version 0.1.0 sends."""
    told, spent = decode_advert(V1_WORD)
    assert (told.node, told.curve.at(50), told.through, spent) == (
        "gw:8080",
        pytest.approx(0.06),
        {"gw:8080", "cloud"},
        NodeTime(0.0125),
    )
    route = decode_route(V1_ROUTE)
    assert (route.path, route.sender, route.deadline_s) == (("end",), "end", 0.04)


def test_a_message_without_what_was_added_is_sent_as_the_release_before_sent_it() -> None:
    """Fields that are absent take no bytes of a header."""
    told, spent = decode_advert(V1_WORD)
    assert json.loads(encode_advert(told, spent)) == json.loads(V1_WORD) | {"through": ["cloud", "gw:8080"]}
    assert encode_route(decode_route(V1_ROUTE)).encode() == V1_ROUTE


def test_fields_of_later_versions_are_ignored() -> None:
    """A node that was upgraded first must not be cut off by the others."""
    assert decode_advert(changed(more=1, other={"a": [None]})) == decode_advert(changed())
    assert decode_route('{"sender":"a","unknown":{"x":5}}') == RouteMessage(sender="a")


def test_a_route_comes_back() -> None:
    """All of it, and what is left out is absent."""
    full = RouteMessage(("a", "b"), 3, "b", "http://b:8080", (1.0, 0.5))
    assert decode_route(encode_route(full)) == full
    assert full.trail == Trail(("a", "b"), 3)
    assert full.wanted == Objective(1.0, 0.5)
    assert decode_route("{}") == RouteMessage()
    assert RouteMessage().wanted is None


@pytest.mark.parametrize(
    "text",
    [
        '{"path":["a","a"]}',
        '{"path":["a b"]}',
        '{"hops_left":-1}',
        '{"hops_left":1000}',
        '{"objective":[1]}',
        '{"objective":[-1,1]}',
        '{"sender":""}',
        '{"address":5}',
        json.dumps({"path": [f"n{i}" for i in range(65)]}),
    ],
)
def test_a_route_that_cannot_be_is_refused(text: str) -> None:
    """It came in a header that anybody may send."""
    with pytest.raises(RouteError):
        decode_route(text)


@given(st.binary(max_size=40), st.floats(0, 2e9), curves())
def test_figure_7s_bytes_come_back(payload: bytes, received_s: float, curve: Curve) -> None:
    """8 + 4 bytes of time, 8 for each point: the sizes that the paper gives."""
    packet = encode_packet(payload, received_s, curve)
    assert len(packet) == len(payload) + 12 + 8 * len(curve.points)
    back, at_s, points = decode_packet(packet, len(payload))
    assert back == payload
    assert at_s == pytest.approx(received_s, abs=1e-6)
    assert [t for _, t in points.points] == pytest.approx([t for _, t in curve.points], rel=1e-6)


@given(st.binary(max_size=64), st.integers(-3, 70))
def test_bytes_that_are_no_packet_are_refused_or_read(packet: bytes, size: int) -> None:
    """Never a crash."""
    with suppress(PeerCurveError):
        decode_packet(packet, size)


@given(st.lists(levels(), min_size=1, max_size=3))
def test_levels_come_back_and_older_nodes_read_the_most_accurate(
    ways: list[tuple[ServiceLevel, ...]],
) -> None:
    """A node that knows of no levels takes `points` for the whole curve; others get bounds as well."""
    some = [Candidate(f"n{i}", way) for i, way in enumerate(ways)]
    told = advert_of("a", some, lambda name: frozenset({name}), 100, (1, 1))
    text = encode_advert(told)
    assert len(text) < LIMIT_BYTES / 2
    back, _ = decode_advert(text)
    assert [(x.accuracy, x.fidelity) for x in back.levels] == [(x.accuracy, x.fidelity) for x in told.levels]
    for got, sent in zip(back.levels, told.levels, strict=True):
        for n in (0, 7, 100):
            assert got.curve.at(n) == pytest.approx(sent.curve.at(n), rel=1e-5, abs=1e-6)
            assert got.bound_curve.at(n) == pytest.approx(sent.bound_curve.at(n), rel=1e-5, abs=1e-6)
    older = {name: value for name, value in json.loads(text).items() if name != "levels"}
    assert decode_advert(json.dumps(older))[0].curve == back.curve


@pytest.mark.parametrize(
    "levels",
    [
        [{"accuracy": 0.9, "points": [[0, 1.0]]}],
        [{"accuracy": 0.9, "points": [[0, 1.0]]}, {"accuracy": 0.8}],
        [{"accuracy": 1.5}],
        [{"accuracy": 0.8, "points": [[0, -1.0]]}, {"accuracy": 0.9}],
        [{"accuracy": 0.5 + i / 100, "points": [[0, 1.0]]} for i in range(20)] + [{}],
        [{"fidelity": "much"}],
    ],
)
def test_levels_that_cannot_be_are_refused(levels: object) -> None:
    """They come from other machines."""
    with pytest.raises(PeerCurveError):
        decode_advert(changed(levels=levels))


@given(st.lists(levels(), min_size=1, max_size=4), st.integers(0, 100))
def test_an_advert_is_the_least_time_at_each_accuracy(ways: list[tuple[ServiceLevel, ...]], n: int) -> None:
    """Brute force over all levels of all ways; what is told was thinned where there are many points."""
    some = [Candidate(f"n{i}", way, fixed_s=0.5 * i) for i, way in enumerate(ways)]
    told = advert_of("a", some, lambda name: frozenset({name}), 100, (1, 1))
    qualities = {level.quality for way in ways for level in way}
    assert told.levels[-1].quality == max(qualities)
    assert told.levels[0].quality == min(qualities)
    assert len(told.levels) <= 4
    for level in told.levels:
        least = min(c.fixed_s + x.curve.at(n) for c in some for x in c.levels if x.quality >= level.quality)
        assert level.curve.at(n) == pytest.approx(least, rel=1e-9)
    dependencies = {
        c.name
        for level in told.levels
        for c in some
        for x in c.levels
        if x.quality >= level.quality and c.fixed_s + x.curve.at(n) <= level.curve.at(n)
    }
    assert dependencies <= told.through
