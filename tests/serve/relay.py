"""A relay between two nodes over HTTP, which notes what they tell each other, and may change it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx

from tests.serve.nodes import PATIENCE_S

_OF_CONNECTIONS = (
    "connection",
    "content-length",
    "date",
    "host",
    "keep-alive",
    "server",
    "transfer-encoding",
)


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer. `start` is the method and the path, or the status; names are in lower case."""

    start: str
    headers: Mapping[str, str]
    content: bytes

    def with_headers(self, **changed: str | None) -> "Message":
        """With headers (`_` for `-`) added or replaced, and those that are None left out."""
        named = {name.replace("_", "-"): value for name, value in changed.items()}
        headers = {**self.headers, **named}
        return replace(self, headers={name: value for name, value in headers.items() if value is not None})


Change = Callable[[Message], Message]


def as_it_is(message: Message) -> Message:
    return message


class Relay:
    """Passes requests on to the node at `target`, and answers back, each changed as it is told."""

    def __init__(self, target: str = "", request: Change = as_it_is, answer: Change = as_it_is) -> None:
        self.target = target
        self.passed: list[tuple[Message, Message]] = []
        """Requests and answers, as they came."""
        relay = self

        class Passing(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass()

            def do_POST(self) -> None:
                self._pass()

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                came = Message(f"{self.command} {self.path}", _own(self.headers), body)
                answered = sent(relay.target, request(came))
                relay.passed.append((came, answered))
                back = answer(answered)
                self.send_response(int(back.start))
                for name, value in {**back.headers, "content-length": str(len(back.content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(back.content)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A connection that is given up, as nodes do with those that lie unused, is no error."""

        self._server = Server(("127.0.0.1", 0), Passing)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def sent(url: str, message: Message) -> Message:
    """The answer of the node at `url`."""
    method, _, path = message.start.partition(" ")
    answer = httpx.request(
        method, f"{url}{path}", headers=message.headers, content=message.content, timeout=PATIENCE_S
    )
    return Message(str(answer.status_code), _own(answer.headers), answer.content)


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    """Without those of one connection."""
    return {name.lower(): value for name, value in headers.items() if name.lower() not in _OF_CONNECTIONS}
