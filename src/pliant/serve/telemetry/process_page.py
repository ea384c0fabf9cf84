"""Health and metrics of a process without an HTTP API: a worker or primary of a cluster."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from threading import BoundedSemaphore, Thread
from typing import Any

from pliant.errors import NodeError

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - the tests need it
    raise NodeError(f"--metrics needs {error.name}: pip install 'pliant[node]'.") from error

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 10.0
_MOST_AT_ONCE = 128
"""Maximum number of connections, each with a thread; further ones are closed."""
_LOG = logging.getLogger("pliant.serve")


@dataclass(frozen=True, slots=True)
class ProcessPage:
    """The readiness of a process, and its metrics, collected at each scrape."""

    is_ready: Callable[[], bool]
    metrics: Callable[[], Iterator[Metric]]


@contextmanager
def process_page(host: str, port: int, page: ProcessPage) -> Iterator[str]:
    """Serve `/metrics`, `/v2/health/live` and `/v2/health/ready` on a thread; yields the URL.

    The endpoints are read-only and show no inputs, so no token is needed. Raises NodeError if the server
    cannot listen.
    """
    try:
        server = _Server((host, port), page)
    except OSError as error:
        why = f"nothing can listen at {host}:{port}: {error.strerror}. Name another address."
        raise NodeError(why) from error
    thread = Thread(target=server.serve_forever, name="pliant-metrics", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_AT_ONCE  # with the default of 5, dropped connections are retried after 1 s

    def __init__(self, address: tuple[str, int], page: ProcessPage) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self.page = page
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_PageCollector(page))
        self._places = BoundedSemaphore(_MOST_AT_ONCE)
        super().__init__(address, _PageRequest)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


class _PageCollector(Collector):
    def __init__(self, page: ProcessPage) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        return self._page.metrics()


class _PageRequest(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        page = self.server.page
        match self.path:
            case "/metrics":
                self._answer(200, _TEXT, generate_latest(self.server.registry))
            case "/v2/health/live":
                self._answer(200, "application/json", b'{"live":true}')
            case "/v2/health/ready":
                is_ready = page.is_ready()
                body = b'{"ready":true}' if is_ready else b'{"ready":false}'
                self._answer(200 if is_ready else 503, "application/json", body)
            case _:
                why = b'{"error":"there are /metrics, /v2/health/live and /v2/health/ready."}'
                self._answer(404, "application/json", why)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _LOG.debug(format, *args)
