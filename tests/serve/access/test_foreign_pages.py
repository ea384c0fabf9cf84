"""Pages of other sites in the browser of somebody who runs a node at loopback."""

import httpx
import pytest

from pliant.serve.access.foreign_pages import foreign_page
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running

TOKEN = "client-token-0123"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "https://evil.example"),
        ("127.0.0.1:8080", "http://127.0.0.1:9090"),
        ("127.0.0.1:8080", "null"),
        ("127.0.0.1:8080", "http://[::1"),
        ("", "https://evil.example"),
        ("rebound.evil.example:8080", "http://rebound.evil.example:8080"),
        ("rebound.evil.example:8080", None),
        ("localhost.evil.example", None),
        ("127.0.0.1.evil.example", None),
        ("[::1", None),
    ],
)
def test_pages_of_other_sites_are_kept_out(host: str, origin: str | None) -> None:
    """They post without reading (CSRF), or read under a name of their own (DNS rebinding)."""
    assert foreign_page(host, origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", None),
        ("[::1]:8080", None),
        ("localhost:8080", "http://localhost:8080"),
        ("pliant.localhost", None),
        ("10.0.0.1", "http://10.0.0.1"),
        ("", None),
    ],
)
def test_the_nodes_own_page_and_programs_are_not(host: str, origin: str | None) -> None:
    """curl, clients of every language, and the page at /."""
    assert foreign_page(host, origin) is None


def status(node: Running, **headers: str) -> int:
    url = f"{node.url}/v2/models/upper/infer"
    return httpx.post(url, content=asking("a"), headers=headers, timeout=PATIENCE_S).status_code


def test_a_node_at_loopback_answers_no_page_of_another_site() -> None:
    """Where a token is asked for, no page has it; whoever says --insecure has said so."""
    with running(Upper()) as node:
        assert status(node) == 200
        assert status(node, host="evil.example") == 403
        assert status(node, origin="https://evil.example") == 403
        assert status(node, origin=node.url) == 200
        health = f"{node.url}/v2/health/live"
        assert httpx.get(health, headers={"host": "any"}, timeout=PATIENCE_S).status_code == 200
    with running(Upper(), tokens=(TOKEN,)) as node:
        assert status(node, host="behind.proxy.example", authorization=f"Bearer {TOKEN}") == 200
    with running(Upper(), is_insecure=True) as node:
        assert status(node, host="behind.proxy.example") == 200
