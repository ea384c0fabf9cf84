"""What a node tells systemd, at a socket that stands for it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.serve.telemetry.service_manager import ServiceManager, service_manager
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, running


@contextmanager
def listening(address: str | Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(address).replace("@", "\0", 1))
        sock.settimeout(PATIENCE_S)
        yield sock


def test_a_node_says_that_it_is_ready_that_it_lives_and_that_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    with listening(path) as sock:
        with running(Upper()) as node:
            heard = {sock.recv(4096).decode() for _ in range(8)}
        assert heard == {"WATCHDOG=1", f"READY=1\nSTATUS=serves at {node.url}"}
        while (last := sock.recv(4096)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"


def test_an_abstract_address_is_found() -> None:
    name = "@pliant-test-service-manager"
    with listening(name) as sock:
        service_manager({"NOTIFY_SOCKET": name}).notify("READY=1")
        assert sock.recv(4096) == b"READY=1"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": "/a"}, ServiceManager("/a")),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "5000000"}, ServiceManager("/a", 5.0)),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "8"}, ServiceManager("/a")),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "-1"}, ServiceManager("/a")),
        ({"WATCHDOG_USEC": "5000000"}, ServiceManager()),
    ],
)
def test_the_environment_says_who_listens(environment: dict[str, str], expected: ServiceManager) -> None:
    assert service_manager(environment, pid=7) == expected


def test_a_manager_that_has_gone_is_no_error(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "nobody")).notify("READY=1")
