"""A server that looks like a node and is none: what it says is given."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from pliant.route.node_identity import Identity


class Liar:
    """Pings get `points`, requests `status`, `content` and headers, among them `answer_points` or `points`.

    `is_silent` answers requests never.
    """

    def __init__(
        self,
        points: str = "[[0,0.0]]",
        status: int = 200,
        content: bytes = b"{}",
        inference_header: str | None = None,
        is_silent: bool = False,
        spent_s: float = 0.0,
        answer_points: str | None = None,
    ) -> None:
        self.n_asked = self.n_calls = 0
        self.shown: list[str | None] = []
        """What each request said of who may ask."""
        self._ended = threading.Event()
        word, answer_word = (
            f'{{"node":"liar","points":{p},"through":["liar"],"stamp":[1,1],"spent_s":{spent_s}}}'
            for p in (points, answer_points or points)
        )
        liar = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                liar.n_calls += 1
                self._say(200, word.encode(), {})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                liar.n_asked += 1
                liar.n_calls += 1
                liar.shown.append(self.headers.get("authorization"))
                if is_silent:
                    liar._ended.wait(30)
                    return
                more = (
                    {} if inference_header is None else {"Inference-Header-Content-Length": inference_header}
                )
                self._say(status, content, {"Pliant-Curve": answer_word, **more})

            def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                own = {"Content-Length": str(len(body)), **Identity().headers()}
                for name, value in {**headers, **own}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        time.sleep(0)
