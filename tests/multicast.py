"""Whether loopback carries multicast, for tests that announce and discover."""

import secrets
from queue import Empty, Queue

import pytest

from pliant.errors import MulticastError
from pliant.multicast import DiscoveredService, announce_service, browse_services

WAIT_S = 30.0
_KIND, _HOST = "_pliant-probe._tcp.local.", "127.0.0.1"


@pytest.fixture(scope="module")
def multicast() -> None:
    """Skips where a service that is announced on loopback is not found there."""
    found, run = Queue[DiscoveredService](), secrets.token_hex(8)
    try:
        with (
            announce_service(_KIND, run, [_HOST], 9, {"run": run}),
            browse_services(_KIND, found.put, hosts=[_HOST]),
        ):
            while found.get(timeout=WAIT_S).properties.get("run") != run:
                pass
    except (MulticastError, Empty) as error:
        pytest.skip(f"no multicast on loopback: {error!r}")
