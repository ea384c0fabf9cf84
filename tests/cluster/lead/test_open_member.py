"""What a member is assembled from."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pliant.cluster.control.messenger import Messenger
from pliant.cluster.lead.open_member import MemberOptions
from pliant.cluster.net.key import new_key
from pliant.cluster.net.zmq_sockets import SecureContext, find_local_address

Connect = Callable[..., tuple[Any, Any]]


class _Probe:
    """A datagram socket that is connected to anything; `families` are those of all."""

    families: ClassVar[list[int]] = []

    def __init__(self, family: int, kind: int) -> None:
        self.families.append(family)

    def __enter__(self) -> "_Probe":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def connect(self, address: tuple[str, int]) -> None:
        return None

    def getsockname(self) -> tuple[str, int]:
        return ("fd00::2", 1) if self.families[-1] == socket.AF_INET6 else ("10.0.0.2", 1)


def test_an_event_that_cannot_be_told_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The terminal was closed: the next worker that joined ended the thread of all messages."""

    def fail(text: str) -> None:
        raise OSError("Input/output error")

    options = MemberOptions("a", new_key(), "1", tmp_path, 1, on_event=fail)
    options.report("b joined")
    assert "could not be told: b joined" in caplog.text


@pytest.mark.parametrize("is_ipv6", [True, False])
def test_a_worker_joins_a_primary_by_the_family_of_its_name(
    monkeypatch: pytest.MonkeyPatch, is_ipv6: bool
) -> None:
    """A name with an IPv6 address alone `cannot be reached`, said the worker, and its messenger."""
    asked: list[bool] = []
    connect: Connect = SecureContext.connect

    def record(self: SecureContext, *given: Any, is_ipv6: bool = False) -> tuple[Any, Any]:
        asked.append(is_ipv6)
        return connect(self, *given, is_ipv6=is_ipv6)

    monkeypatch.setattr(SecureContext, "connect", record)
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **options: [(family,)])
    with Messenger("a", new_key(), on_message=lambda peer, message: None) as messenger:
        messenger.connect("kitchen.local:29500")
    assert asked == [is_ipv6]
    monkeypatch.setattr(socket, "socket", _Probe)
    assert find_local_address("kitchen.local:29500") == ("[fd00::2]" if is_ipv6 else "10.0.0.2")
