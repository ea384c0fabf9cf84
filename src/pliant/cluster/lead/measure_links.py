"""Measure latencies and bandwidths between members over the connections that inference uses.

All members run `measure_links` at once. A pair exchanges small messages, then a few larger ones each way;
only the first of the two takes times. Each member is in one pair at a time, so pairs do not share an
interface.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from pliant.cluster.net.comm import Comm, Tag
from pliant.errors import PeerProtocolError
from pliant.ir.capability import Interface, Links
from pliant.ir.link import Link

TIMEOUT_S = 10.0
_PINGS = 8
_SMALLEST_BYTES, _LARGEST_BYTES = 16 << 10, 4 << 20
_MESSAGE_S, _PAIR_S = 0.04, 0.4
_MESSAGE_TRIPS, _PAIR_TRIPS = 4, 48
"""The same in round trips, if these are long: TCP needs several to reach the link's speed."""
_TIMES, _RISING = 3, 1.15
_SLOWER, _LATER, _LATER_S = 0.85, 1.25, 0.1e-3

_END, _PING, _TAKE, _GIVE = range(4)
"""Requests of the first member: end, reply, take a payload and reply, send one."""

DevicePair = tuple[str, str]


def measure_links(
    comm: Comm, members: Sequence[str], epoch: int, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[DevicePair, Link]]:
    """Yield both directions of every pair that this member times, as (source, destination).

    `members` is the same sequence on every member, including this one; the tags of `epoch` have no other use.
    A pair takes at most about 0.5 s and 60 round trips, for any link speed, unless messages of 16 KB take
    longer. Raises PeerLostError, PeerProtocolError and ClusterError as `comm` does.
    """
    timeout_s = TIMEOUT_S + len(members)  # a peer may still be in its earlier pairs
    for pair in (pair for together in schedule_rounds(members) for pair in together):
        first, second = pair
        if comm.name == first:
            out, back = _LinkProbe(comm, second, epoch, clock, timeout_s).measure()
            yield (first, second), out
            yield (second, first), back
        elif comm.name == second:
            _answer_probes(comm, first, epoch, timeout_s)


def schedule_rounds(members: Sequence[str]) -> tuple[tuple[DevicePair, ...], ...]:
    """Return all pairs in the fewest rounds, each member at most once per round (the circle method)."""
    seats: list[str | None] = [*members, *([None] if len(members) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        faced = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append(tuple((a, b) for a, b in faced if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(found)


def links_of(measured: Mapping[DevicePair, Link]) -> Links:
    """Return the measured network: each member's interface, and the pairs that differ from it.

    An interface has the bandwidth of its fastest pair. A pair is listed if it is below 0.85 of both its
    interfaces, or its latency differs from the usual one.
    """
    names = sorted({name for pair in measured for name in pair})
    interfaces = {
        name: Interface(
            max((k.bandwidth_Bps for (src, _), k in measured.items() if src == name), default=float("inf")),
            max((k.bandwidth_Bps for (_, dst), k in measured.items() if dst == name), default=float("inf")),
        )
        for name in names
    }
    usual_s = median(link.latency_s for link in measured.values()) if measured else 0.0
    pairs = {}
    for (src, dst), link in measured.items():
        most_Bps = min(interfaces[src].egress_Bps, interfaces[dst].ingress_Bps)
        is_slow = link.bandwidth_Bps < _SLOWER * most_Bps
        if is_slow or max(link.latency_s, usual_s) > _LATER * min(link.latency_s, usual_s) + _LATER_S:
            pairs[src, dst] = Link(link.latency_s, link.bandwidth_Bps if is_slow else float("inf"))
    return Links(interfaces, usual_s, pairs)


class _LinkProbe:
    """The first of a pair: it sends requests, the second replies, one message at a time."""

    def __init__(
        self, comm: Comm, peer: str, epoch: int, clock: Callable[[], float], timeout_s: float
    ) -> None:
        self._comm, self._peer, self._epoch, self._clock = comm, peer, epoch, clock
        self._patience_s = timeout_s
        self._number = 0

    def measure(self) -> tuple[Link, Link]:
        """Measure the link to the peer, and back.

        The two threads' cost of a message is priced as `MessageOverhead`s, and excluded from the latency.
        """
        self._ask(_PING, 1)  # opens the connection
        rtt_s, ends_s = min(self._ask(_PING, 1) for _ in range(_PINGS))
        latency_s = max(0.0, rtt_s / 2 - ends_s)
        pair_s = _PAIR_S + _PAIR_TRIPS * rtt_s
        until_s = self._clock() + pair_s
        out_Bps = self._bandwidth(_TAKE, rtt_s, until_s - pair_s / 2)
        back_Bps = self._bandwidth(_GIVE, rtt_s, until_s)
        self._ask(_END, 1)
        return Link(latency_s, out_Bps), Link(latency_s, back_Bps)

    def _bandwidth(self, what: int, rtt_s: float, until_s: float) -> float:
        """Measure with growing messages until one takes long enough to make the round trip negligible.

        The message size follows from the highest rate so far, because a delayed message is not
        representative. Rates are not counted while they still increase from message to message.
        """
        message_s = max(_MESSAGE_S, _MESSAGE_TRIPS * rtt_s)
        n_bytes, best_Bps = _SMALLEST_BYTES, 0.0
        rates: list[float] = []
        while True:
            rate_Bps = n_bytes / max(self._ask(what, n_bytes)[0] - rtt_s, 1e-7)
            is_rising = rate_Bps > _RISING * best_Bps
            best_Bps = max(best_Bps, rate_Bps)
            wanted = min(int(best_Bps * message_s), _LARGEST_BYTES)
            rates = [] if is_rising else rates
            if n_bytes >= wanted // 2:
                rates.append(rate_Bps)
            if len(rates) == _TIMES or self._clock() > until_s:
                return median(rates) if rates else best_Bps
            if not rates or is_rising:
                n_bytes = max(n_bytes, min(wanted, 16 * n_bytes))

    def _ask(self, what: int, n_bytes: int) -> tuple[float, float]:
        """Return the seconds from the request to the complete reply, and the local share of send and receive.

        The peer's share is about the same.
        """
        payload = np.zeros(n_bytes if what == _TAKE else 1, np.uint8)
        into = np.empty(n_bytes if what == _GIVE else 1, np.uint8)
        question, tag = np.array([what, n_bytes], np.int64), Tag(self._epoch, 0, self._number)
        after = Tag(self._epoch, 1, self._number)
        self._number += 1
        start_s = self._clock()
        self._comm.send(self._peer, tag, question)
        if what == _TAKE:
            self._comm.send(self._peer, after, payload)
        sent_s = self._clock() - start_s
        arrival = self._comm.receive(self._peer, tag, into, self._patience_s)
        return self._clock() - start_s, sent_s + arrival.waited_s


def _answer_probes(comm: Comm, peer: str, epoch: int, timeout_s: float) -> None:
    """Reply as the second of a pair, until the first ends. Raises PeerProtocolError for a bad request."""
    question, number = np.zeros(2, np.int64), 0
    while True:
        tag = Tag(epoch, 0, number)
        comm.receive(peer, tag, question, timeout_s)
        what, n_bytes = int(question[0]), int(question[1])
        if what not in (_END, _PING, _TAKE, _GIVE) or not 1 <= n_bytes <= _LARGEST_BYTES:
            raise PeerProtocolError(
                f"{peer} asks for {n_bytes} bytes by {what} while links are measured.", peer
            )
        if what == _TAKE:
            comm.receive(peer, Tag(epoch, 1, number), np.empty(n_bytes, np.uint8), timeout_s)
        comm.send(peer, tag, np.zeros(n_bytes if what == _GIVE else 1, np.uint8))
        if what == _END:
            return
        number += 1
