"""The health page of a worker under many connections that bring nothing."""

import socket
import socketserver
import threading
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from pliant.serve.telemetry.process_page import ProcessPage, process_page
from tests.serve.nodes import PATIENCE_S
from tests.serve.test_routing import until


def test_connections_that_bring_nothing_take_no_more_threads_than_there_are_places() -> None:
    """Each connection has a thread: thousands would take the memory of the worker's model."""
    before = threading.active_count()
    page = ProcessPage(lambda: True, lambda: iter(()))
    with process_page("127.0.0.1", 0, page) as url:
        parts = urlsplit(url)
        with ExitStack() as stack:
            for _ in range(300):
                sock = socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S)
                stack.enter_context(sock)
            until(lambda: sock.recv(1) == b"", "the last is not closed")
            assert threading.active_count() - before <= 128 + 1
        until(lambda: threading.active_count() - before <= 1)
        assert httpx.get(f"{url}/v2/health/ready", timeout=PATIENCE_S).json() == {"ready": True}
        assert "process_" in httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text


def test_requests_without_a_thread_take_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 128 of them the page was closed to everybody, and a healthy worker was taken for dead."""
    begin, left = socketserver.ThreadingMixIn.process_request, [None] * 129

    def flawed(server: Any, request: Any, address: Any) -> None:
        if left:
            left.pop()
            raise RuntimeError("can't start new thread")
        begin(server, request, address)

    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", flawed)
    monkeypatch.setattr(socketserver.BaseServer, "handle_error", lambda *about: None)  # it prints
    with process_page("127.0.0.1", 0, ProcessPage(lambda: True, lambda: iter(()))) as url:
        parts = urlsplit(url)
        for _ in range(129):
            with socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S) as sock:
                assert sock.recv(1) == b""
        assert not left
        assert httpx.get(f"{url}/v2/health/ready", timeout=PATIENCE_S).json() == {"ready": True}
