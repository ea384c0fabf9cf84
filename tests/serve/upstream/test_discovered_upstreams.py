"""Upstreams that are announced and named by the options, in any order."""

from collections.abc import Collection

import pytest

from pliant.ir.link import Link
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.upstream.discovered_upstreams import DiscoveredUpstreams

URL, OTHER = "http://10.0.0.2:8080", "http://10.0.0.3:8080"


class Upstreams:
    """The upstreams in use: as a node's, but nothing is sent."""

    def __init__(self, configured: Collection[str] = ()) -> None:
        self.router, self.used = Router("here", RouterSettings(64)), set[str]()
        for url in configured:
            self.add(url)
        self.found = DiscoveredUpstreams(self, self.router, lambda: 0.0, configured)

    def add(self, url: str) -> None:
        self.router.add_successor(url, Link(0.01, 1e6))
        self.used.add(url)

    def remove(self, url: str) -> None:
        self.router.remove_successor(url)
        self.used.discard(url)

    def changed(self) -> None:
        pass

    def configure(self, *urls: str) -> set[str]:
        """Change the options; returns the upstreams in use."""
        added, removed = self.found.configure(urls)
        for url in removed:
            self.remove(url)
        for url in added - self.used:
            self.add(url)
        return self.used


@pytest.mark.parametrize("is_first", [True, False])
def test_an_announced_upstream_stays_when_the_options_leave_it_out(is_first: bool) -> None:
    """Whether it was announced before the options named it or afterwards, until its announcement ends."""
    node = Upstreams(() if is_first else (URL, OTHER))
    node.found.join(URL)
    assert node.configure(URL, OTHER) == {URL, OTHER}
    assert URL not in node.found
    assert node.configure() == {URL}
    assert URL in node.found
    node.found.leave(URL)
    assert not node.used


def test_an_upstream_whose_announcement_ended_goes_with_the_options() -> None:
    node = Upstreams((URL,))
    node.found.join(URL)
    node.found.leave(URL)
    assert node.used == {URL}
    assert not node.configure()


def test_an_upstream_that_an_operator_removed_does_not_return_with_the_options() -> None:
    """It is still announced, and the options that named it no longer do."""
    node = Upstreams((URL,))
    node.found.join(URL)
    node.found.bar(URL)
    node.remove(URL)
    assert not node.configure()
    assert URL not in node.found
