"""Latencies and bandwidths between members."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.lead.measure_links import links_of, measure_links, schedule_rounds
from pliant.cluster.net.comm import Arrival, Comm, Tag
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.errors import ClusterError, PeerProtocolError
from pliant.ir.capability import Interface, Links
from pliant.ir.link import Link

_TRUE = {("a", "b"): Link(2e-3, 10e6), ("b", "a"): Link(2e-3, 50e6)}


class _Timed:
    """A member whose clock moves by what its messages to and from one peer would take."""

    def __init__(self, comm: Comm, out: Link, back: Link) -> None:
        self.name = comm.name
        self.now_s = 0.0
        self.n_messages = 0
        self._comm, self._out, self._back = comm, out, back

    def clock(self) -> float:
        return self.now_s

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        self.n_messages += 1
        self.now_s += payload.nbytes / self._out.bandwidth_Bps
        self._comm.send(dst, tag, payload, note)

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        self.now_s += self._out.latency_s + into.nbytes / self._back.bandwidth_Bps
        return Arrival(self._comm.receive(src, tag, into, timeout_s).note, 0.0)


@pytest.mark.parametrize("out_Bps", [20e3, 1e6, 25e6, 1e9])
@pytest.mark.parametrize("rtt_s", [50e-6, 5e-3, 0.1])
def test_what_is_measured_is_what_there_is(out_Bps: float, rtt_s: float) -> None:
    """Each direction on its own, slow links and late ones, in well under a second but for the slowest."""
    out, back = Link(rtt_s, out_Bps), Link(rtt_s, 3 * out_Bps)
    network = MemoryNetwork()
    timed, peer = _Timed(network.join("a"), out, back), network.join("b")
    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(lambda: dict(measure_links(peer, ("a", "b"), 5)))
        found = dict(measure_links(timed, ("a", "b"), 5, clock=timed.clock))  # type: ignore[arg-type]
        assert answering.result() == {}
    least_s = 2e-3 if out_Bps < 1e6 else 50e-6
    assert found["a", "b"].latency_s == pytest.approx(rtt_s / 2, rel=0.05, abs=least_s)
    for pair, link in {("a", "b"): out, ("b", "a"): back}.items():
        assert found[pair].bandwidth_Bps == pytest.approx(link.bandwidth_Bps, rel=0.05)
    assert timed.now_s < 1.0 + 60 * rtt_s + 2 * (16 << 10) / out_Bps


class _Busy(_Timed):
    """A member whose thread takes a while to hand a message over, and to take one that has arrived."""

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        self.now_s += _SEND_S
        super().send(dst, tag, payload, note)

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        arrival = super().receive(src, tag, into, timeout_s)
        self.now_s += _SEND_S + 2 * _TAKE_S  # the peer's ends are as long, and in its answer's way
        return Arrival(arrival.note, _TAKE_S)


_SEND_S, _TAKE_S = 0.3e-3, 0.2e-3


def test_a_latency_holds_nothing_of_what_messages_take_of_threads() -> None:
    """That is a `MessageOverhead` of each device: counted twice, tiled modes were predicted a fifth too
    slow.
    """
    link, network = Link(4e-3, 1e9), MemoryNetwork()
    busy, peer = _Busy(network.join("a"), link, link), network.join("b")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: dict(measure_links(peer, ("a", "b"), 5)))
        found = dict(measure_links(busy, ("a", "b"), 5, clock=busy.clock))  # type: ignore[arg-type]
    for one in found.values():
        assert one.latency_s == pytest.approx(link.latency_s / 2, rel=0.01)


class _Warming(_Timed):
    """As TCP begins: a window that doubles with each round trip until the link is full."""

    window_bytes = 14e3

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        full_bytes = self._out.latency_s * self._out.bandwidth_Bps
        while self.window_bytes < min(payload.nbytes, full_bytes):
            self.now_s += self._out.latency_s
            self.window_bytes *= 2
        super().send(dst, tag, payload, note)


@pytest.mark.parametrize(("rtt_s", "rate_Bps"), [(0.01, 18e6), (0.02, 6.4e6), (0.1, 2e6)])
def test_a_connection_that_has_yet_to_warm_up_is_not_taken_for_a_slow_link(
    rtt_s: float, rate_Bps: float
) -> None:
    """A link of 51 Mbit/s over 10 ms each way was measured as one of 15, and a far device thought useless."""
    link, network = Link(rtt_s, rate_Bps), MemoryNetwork()
    timed, peer = _Warming(network.join("a"), link, link), network.join("b")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: dict(measure_links(peer, ("a", "b"), 5)))
        found = dict(measure_links(timed, ("a", "b"), 5, clock=timed.clock))  # type: ignore[arg-type]
    assert found["a", "b"].bandwidth_Bps == pytest.approx(rate_Bps, rel=0.1)


def test_every_pair_is_measured_once_by_members_that_run_at_once() -> None:
    """Who waits for whom must not form a circle, odd numbers of members included."""
    names = ("a", "b", "c", "d", "e")
    network = MemoryNetwork()
    comms = [network.join(name) for name in names]
    with ThreadPoolExecutor(len(names)) as threads:
        parts = list(threads.map(lambda comm: dict(measure_links(comm, names, 1)), comms))
    pairs = Counter(pair for part in parts for pair in part)
    assert pairs == Counter([*combinations(names, 2), *((b, a) for a, b in combinations(names, 2))])
    assert all(link.bandwidth_Bps > 0 for part in parts for link in part.values())


@given(st.integers(1, 24))
def test_a_round_has_no_member_twice(n: int) -> None:
    """Pairs that share an interface would each measure half of it."""
    names = [f"d{i}" for i in range(n)]
    found = schedule_rounds(names)
    for together in found:
        members = [name for pair in together for name in pair]
        assert len(members) == len(set(members))
    pairs = [frozenset(pair) for together in found for pair in together]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names, 2)))
    assert len(found) == (n - 1 if n % 2 == 0 else n)


def test_a_question_that_is_none_is_refused_by_name() -> None:
    """A member must not allocate whatever it is told."""
    network = MemoryNetwork()
    liar, honest = network.join("a"), network.join("b")
    liar.send("b", Tag(3, 0, 0), np.array([2, 1 << 50], np.int64))
    with pytest.raises(PeerProtocolError, match="a asks for"):
        dict(measure_links(honest, ("a", "b"), 3))


def test_devices_behind_one_switch_are_interfaces() -> None:
    """Each limited by its own port: no pair needs a name."""
    port = {"a": 100e6, "b": 25e6, "c": 50e6}
    measured = {
        (s, d): Link(1e-3, min(port[s], port[d]) * (0.97 if s < d else 1.0))
        for s in port
        for d in port
        if s != d
    }
    found = links_of(measured)
    assert found.pairs == {}
    assert found.latency_s == 1e-3
    for (src, dst), link in measured.items():
        assert found.link(src, dst).bandwidth_Bps == pytest.approx(link.bandwidth_Bps, rel=0.04)


def test_a_slow_or_late_pair_is_named() -> None:
    """Two devices behind a bad wall, and one far away."""
    measured = {(s, d): Link(1e-3, 100e6) for s in "abc" for d in "abc" if s != d}
    measured["a", "b"] = Link(1e-3, 20e6)
    measured["b", "c"] = Link(9e-3, 100e6)
    found = links_of(measured)
    assert found.pairs == {("a", "b"): Link(1e-3, 20e6), ("b", "c"): Link(9e-3, float("inf"))}
    assert found.link("b", "c") == Link(9e-3, 100e6)
    assert found.link("a", "b") == Link(1e-3, 20e6)


def test_no_pairs_are_no_network() -> None:
    """A primary alone has nobody to measure."""
    assert links_of({}) == Links({}, 0.0)
    assert isinstance(links_of({("a", "b"): Link(0.0, 1.0)}).interfaces["a"], Interface)


def test_what_was_measured_before_a_failure_is_kept() -> None:
    """Of three members one is cut off: the other pair is known."""
    network = MemoryNetwork()
    comms = {name: network.join(name) for name in "abc"}
    names = ("c", "a", "b")
    assert schedule_rounds(names)[0] == (("a", "b"),)
    found: dict[tuple[str, str], Link] = {}
    with ThreadPoolExecutor(1) as threads:
        comms["c"].close()
        there = threads.submit(lambda: found.update(measure_links(comms["b"], names, 1)))
        here: dict[tuple[str, str], Link] = {}
        with pytest.raises(ClusterError):
            here.update(measure_links(comms["a"], names, 1))
        assert isinstance(there.exception(), ClusterError)
    assert set(here) | set(found) == {("a", "b"), ("b", "a")}
