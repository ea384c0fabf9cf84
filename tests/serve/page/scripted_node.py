"""A node of which a test says what its page gets: files of the page, scripted events, questions left open."""

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final

from pliant.serve.page.page_files import INDEX, page_files

PATIENCE_S = 30.0


def picture(run: str = "run") -> dict[str, Any]:
    """That of a node with one model."""
    model = {
        "key": "m:1",
        "name": "m",
        "version": "1",
        "max_length": 9,
        "deadline_s": None,
        "endpoints": ["local"],
        "memory": None,
        "plan": None,
    }
    return {"name": "here", "version": "0", "run": run, "shows_texts": False, "models": [model]}


def numbers(cpu_s: float, after_s: float = 0.0, rss_bytes: int = 1) -> dict[str, Any]:
    """Those of that node, `after_s` from now."""
    row = {"ok": 0, "refused": 0, "failed": 0, "cancelled": 0}
    now: dict[str, Any] = {"n_open": 0, "n_waiting": 0, "devices": [], "requests": {"local": row}}
    shown = {"at_s": time.time() + after_s, "is_draining": False, "cpu_s": cpu_s, "rss_bytes": rss_bytes}
    return {**shown, "budget_bytes": None, "models": {"m:1": now}}


def answers(*seconds: float) -> list[dict[str, Any]]:
    """Answers of that model, which end now."""
    rows = [
        [i + 1, time.time() - took, 3, "local", "ok", took, 0.0, None, None, None]
        for i, took in enumerate(seconds)
    ]
    return [{"model": "m:1", "run": "a", "answers": rows}]


@final
class ScriptedNode:
    """`send` writes an event to the latest connection for events, `end` closes it.

    `asked` are the other questions, which nobody answers.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.is_over = threading.Event()
        self.connections: list[queue.Queue[bytes | None]] = []

    def send(self, name: str, value: Any) -> None:
        self.connections[-1].put(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())

    def end(self) -> None:
        self.connections[-1].put(None)


@contextmanager
def scripted_node(changes: Mapping[str, str]) -> Iterator[ScriptedNode]:
    """A node until the context ends; in its scripts, each text of `changes` is replaced by another."""

    class Paths(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = INDEX if self.path == "/" else self.path.removeprefix("/page/")
            if self.path == "/v2/pliant/events":
                events: queue.Queue[bytes | None] = queue.Queue()
                self._begin("text/event-stream")
                node.connections.append(events)
                while (event := events.get()) is not None:
                    self.wfile.write(event)
            elif name in page_files():
                self._begin(page_files()[name].media_type)
                text = page_files()[name].plain
                for old, new in changes.items():
                    text = text.replace(old.encode(), new.encode())
                self.wfile.write(text)
            else:
                node.asked.append(self.path)
                node.is_over.wait(PATIENCE_S)

        def _begin(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    for old in changes:
        assert sum(old.encode() in file.plain for file in page_files().values()) == 1, old
    server = ThreadingHTTPServer(("127.0.0.1", 0), Paths)
    server.daemon_threads = True
    node = ScriptedNode(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield node
    finally:
        node.is_over.set()
        for connection in node.connections:
            connection.put(None)
        server.shutdown()
        thread.join()
        server.server_close()
