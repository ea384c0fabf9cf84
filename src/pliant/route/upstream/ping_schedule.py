"""Select which due upstreams are pinged now: a ping is postponed if no input would go there."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import final

from pliant.route.choice.candidate import Candidate
from pliant.route.router_settings import RouterSettings
from pliant.route.router_tasks import PingTask
from pliant.route.upstream.successor import Successor

_OPTIMISM = 0.8
_LATELY = 64


@final
class PingSchedule:
    """Estimates the value of news about an upstream from recent inputs."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._lengths: deque[int] = deque(maxlen=_LATELY)
        self.n_inputs = 0

    def add(self, n: int) -> None:
        """Record an input of length n."""
        self._lengths.append(n)
        self.n_inputs += 1

    def due(
        self, peers: Iterable[Successor], candidates: Callable[[], Sequence[Candidate]], now_s: float
    ) -> Iterator[PingTask]:
        """Yield the pings to send now, if something depends on them; postpone the others."""
        for peer in peers:
            if now_s >= min(peer.ping_at_s, peer.queue.news_at_s) and self._should_ping(
                peer, candidates, now_s
            ):
                yield PingTask(peer.name)

    def _should_ping(
        self, peer: Successor, candidates: Callable[[], Sequence[Candidate]], now_s: float
    ) -> bool:
        if now_s >= peer.queue.news_at_s and self._should_query_queue(peer, candidates, now_s):
            return True
        if now_s < peer.ping_at_s:
            return False
        n_inputs, peer.n_inputs = self.n_inputs - peer.n_inputs, self.n_inputs
        if (
            self._settings.adapts_pings
            and not peer.is_overdue(now_s)
            and not self._is_worth(peer, n_inputs, candidates())
        ):
            peer.postpone(now_s)
            return False
        peer.record_ping_sent(now_s)
        return True

    def _should_query_queue(
        self, peer: Successor, candidates: Callable[[], Sequence[Candidate]], now_s: float
    ) -> bool:
        """Return whether to ask `peer` for its queue length; otherwise check again while it has a queue."""
        queue = peer.queue
        n_inputs, queue.n_inputs = self.n_inputs - queue.n_inputs, self.n_inputs
        queue.expect_news(now_s)
        if not (n_inputs and peer.is_ready) or peer.is_ping_pending or queue.news_at_s == inf:
            return False
        if not self._is_worth(peer, n_inputs, candidates()):
            return False
        peer.record_ping_sent(now_s)
        return True

    def _is_worth(self, peer: Successor, n_inputs: int, candidates: Sequence[Candidate]) -> bool:
        """Return whether `peer`, by its best way in the last half hour, would save as much as a ping takes.

        Assumes as many inputs as since the last ping was due, of recent lengths; without inputs, whether it
        would be fastest for some length.
        """
        others = [c for c in candidates if c.name != peer.name]
        if peer.advert is None or not others:
            return True
        link, curve = peer.transfer, peer.advert.curve
        fixed_s = max(link.fixed_s - link.rtt_s + _OPTIMISM * link.floor_s, 0.0)

        def saved_s(n: int) -> float:
            return min(c.seconds(n) for c in others) - (fixed_s + link.per_item_s * n + curve.at(n))

        if n_inputs:
            lately = self._lengths
            by_length = {n: max(saved_s(n), 0.0) for n in set(lately)}
            return n_inputs * sum(by_length[n] for n in lately) / len(lately) > link.rtt_s
        return any(saved_s(n) > 0.0 for n in range(self._settings.max_n + 1))
