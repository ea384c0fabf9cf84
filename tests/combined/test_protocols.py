"""A node above which one upstream speaks the previous protocol and one the current, under many clients."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from pliant.ir.envelope import VERSION
from pliant.route.node_identity import NODE_HEADER, PROTOCOL_HEADER
from tests.combined.crowd import crowd
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import LATE, metric, target_of, until

N_CLIENTS, N_EACH = 16, 6
SHORT, LONG = 4, 40
NEW, OLD = ((0, 100.0),), ((0, 30.0), (10, 30.0), (11, 200.0))
"""Short texts go to the old node and long ones to the new one, as long as neither has many to answer."""
OF_A_HOP = {"host", "connection", "transfer-encoding", "content-length", "date", "server"}


@contextmanager
def of_version_before(node: Running) -> Iterator[str]:
    """Where `node` answers as one of the version before: each side is told that of the other."""

    class Passes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass(b"")

        def do_POST(self) -> None:
            self._pass(self.rfile.read(int(self.headers["content-length"])))

        def _pass(self, body: bytes) -> None:
            url, headers = f"{node.url}{self.path}", kept(dict(self.headers))
            answer = httpx.request(self.command, url, content=body, headers=headers, timeout=PATIENCE_S)
            self.send_response(answer.status_code)
            said = kept(dict(answer.headers)) | {"content-length": str(len(answer.content))}
            for name, value in said.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passes)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def kept(headers: dict[str, str]) -> dict[str, str]:
    found = {name.lower(): value for name, value in headers.items() if name.lower() not in OF_A_HOP}
    is_said = PROTOCOL_HEADER.lower() in found
    return found | ({PROTOCOL_HEADER.lower(): f"{VERSION - 1}"} if is_said else {})


def test_upstreams_of_two_protocols_answer_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are upgraded one after the other, while clients ask: the old one stays in use beside the new."""
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", PATIENCE_S)
    found: list[tuple[str, httpx.Response]] = []
    with (
        running(Upper(mark="@old"), name="old", **fixed(*OLD)) as old,
        running(Upper(mark="@new"), name="new", **fixed(*NEW)) as new,
        of_version_before(old) as old_url,
        running(Upper(mark="@end"), name="end", upstreams=(old_url, new.url), **fixed(*LATE)) as end,
    ):
        until(lambda: (target_of(end, SHORT), target_of(end, LONG)) == (old_url, new.url))

        def ask(client: int) -> None:
            with httpx.Client(base_url=end.url, timeout=PATIENCE_S) as http:
                for n in range(N_EACH):
                    text = f"{client:02}-{n}".ljust((SHORT, LONG)[n % 2], "x")
                    found.append((text, http.post("/v2/models/upper/infer", content=asking(text))))

        crowd([partial(ask, client) for client in range(N_CLIENTS)])
        seen: Counter[str] = Counter()
        for text, response in found:
            assert response.status_code == 200, response.text
            maker = response.headers[NODE_HEADER]
            assert response.json()["outputs"][0]["data"] == [f"{text.upper()}@{maker}"]
            seen[maker] += 1
        assert seen["old"] > 0
        assert seen["new"] > 0
        assert sum(seen.values()) == N_CLIENTS * N_EACH
        for name, target, node in (("old", old_url, old), ("new", new.url, new), ("end", "local", None)):
            line = 'pliant_requests_total{{outcome="ok",target="{}"}}'
            assert metric(end, line.format(target)) == seen[name]
            assert node is None or metric(node, line.format("local")) == seen[name]
        for url in (old_url, new.url):
            for kind in ("fallbacks", "mismatches"):
                assert metric(end, f'pliant_{kind}_total{{upstream="{url}"}}') == 0
