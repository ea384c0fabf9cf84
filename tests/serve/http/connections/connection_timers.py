"""A connection on a transport and a clock that a test moves."""

from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from pliant.serve.http.connections.http_connection import protocol_factory
from pliant.serve.http.limits import Limits


class Timers:
    """An event loop whose time passes when a test says so, and whose tasks never start."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Mock, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, wait_s: float, then: Callable[[], None]) -> Mock:
        handle = Mock()
        self.timers.append((self.now_s + wait_s, handle, then))
        return handle

    def create_task(self, work: Coroutine[object, object, None], **_: object) -> Mock:
        work.close()
        return Mock()

    def passes(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= ends_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = first[0]
            if not first[1].cancel.called:
                first[2]()
        self.now_s = ends_s


def a_transport() -> Mock:
    """One that sends at once, until a test says otherwise."""
    transport = Mock()
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = 0
    transport.get_extra_info.return_value = None
    return transport


@pytest.fixture
def by_hand() -> tuple[Any, Mock, Timers]:
    """A connection, its transport and its time; waits are 10 s for a head, and 30 s for its answer."""
    timers, transport = Timers(), a_transport()
    config = uvicorn.Config(Mock(), interface="asgi3", log_config=None, ws="none", timeout_keep_alive=120)
    made: Any = protocol_factory(Limits(head_s=10.0, stall_s=10.0, write_s=30.0))
    connection = made(config, ServerState(), {}, timers)
    connection.connection_made(transport)
    return connection, transport, timers


def answered(connection: Any) -> None:
    """As its cycle does once the last byte was given to the transport."""
    connection.cycle.response_complete = True
    connection.on_response_complete()
