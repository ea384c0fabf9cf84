"""Where upstreams come from: the node's options, an operator, or announcements, which also end."""

from collections.abc import Callable, Collection
from typing import Protocol, final

from pliant.route.router import Router

_FIRST_S, _LAST_S = 0.5, 60.0


class UpstreamChanges(Protocol):
    """Adds and removes upstreams by URL."""

    def add(self, url: str) -> None: ...

    def remove(self, url: str) -> None: ...

    def changed(self) -> None: ...


@final
class DiscoveredUpstreams:
    """Tracks discovered upstreams, and which others an operator added or the node's options name.

    Call on the event loop. `configured` are the URLs of the options. Any host can forge the end of an
    announcement, so a withdrawn upstream is pinged and only removed if it does not answer. An upstream that
    an operator removed is not accepted again until an operator adds it, or the options newly name it.
    """

    def __init__(
        self,
        upstreams: UpstreamChanges,
        router: Router,
        clock: Callable[[], float],
        configured: Collection[str] = (),
    ) -> None:
        self._upstreams, self._router, self._clock = upstreams, router, clock
        self._configured, self._pinned = frozenset(configured), set[str]()
        self._found: set[str] = set()
        self._announced: set[str] = set()
        """Those in the options that are announced as well."""
        self._leaving: dict[str, float] = {}
        """For withdrawn upstreams, the delay of the next ping in seconds after their last answer."""
        self._barred: set[str] = set()

    def __contains__(self, url: str) -> bool:
        return url in self._found

    def join(self, url: str) -> None:
        """`url` was announced."""
        self._leaving.pop(url, None)
        if url in self._configured:
            self._announced.add(url)
        if url not in self._barred and self._router.state(url, self._clock()) is None:
            self._found.add(url)
            self._upstreams.add(url)

    def leave(self, url: str) -> None:
        """`url` is no longer announced."""
        self._announced.discard(url)
        if url not in self._found:
            return
        self._leaving[url] = _FIRST_S
        peer = self._router.state(url, self._clock())
        if peer is None or peer.state != "ready":
            self.failed(url)
            return
        self._router.record_doubt(url, self._clock())
        self._upstreams.changed()

    def answered(self, url: str) -> None:
        """`url` answered a ping; a node that shuts down still answers for a while (`--settle`)."""
        if url in self._leaving:
            self._router.record_doubt(url, self._clock() + self._leaving[url])
            self._leaving[url] = min(2.0 * self._leaving[url], _LAST_S)

    def failed(self, url: str) -> None:
        """`url` is no longer a candidate."""
        if url in self._leaving:
            self._forget(url)
            self._upstreams.remove(url)

    def pin(self, url: str) -> None:
        """An operator adds `url`: announcements and the node's options no longer affect it."""
        self._pinned.add(url)
        self._use(url)

    def bar(self, url: str) -> None:
        """An operator removes `url`."""
        if url in self._found:
            self._barred.add(url)
        self._pinned.discard(url)
        self._announced.discard(url)
        self._forget(url)

    def changes(self, urls: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The upstreams that `configure` adds and removes: none of an operator or of announcements."""
        wanted = frozenset(urls)
        return wanted - self._configured, self._configured - wanted - self._pinned - self._announced

    def configure(self, urls: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The options name `urls` from now on; returns the upstreams to add and to remove."""
        added, removed = self.changes(urls)
        unnamed = self._configured.difference(urls)
        self._found |= self._announced & unnamed - self._pinned
        self._announced = self._announced - unnamed | (self._found & added - self._leaving.keys())
        self._configured = frozenset(urls)
        for url in added:
            self._use(url)
        return added, removed

    def _use(self, url: str) -> None:
        self._forget(url)
        self._barred.discard(url)

    def _forget(self, url: str) -> None:
        self._found.discard(url)
        self._leaving.pop(url, None)
