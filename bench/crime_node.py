"""A node's overhead over its model: the router at the median, a hop, and a minute of 16 clients at
saturation.

[crime.overhead] [crime.load] Over loopback; each node is a process, and the clients are another.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from pliant.api.open_endpoint import open_endpoint
from report import Report, options

MODEL = "imdb-lstm"
WORDS = 40
LINE = "the film was a charming and often affecting journey through what nobody wanted to see "
N_LATE = 8
N_CLIENTS = 16
_ENDS_S = 20.0
"""The timeout for a process to end after it is asked to."""
PEER = Path(__file__).with_name("crime_node_peer.py")
PLIANT = [sys.executable, "-c", "from pliant.cli.app import app; app()"]
NODE = [*PLIANT, "node", MODEL, "--listen", "127.0.0.1:0", "--threads", "1", "--json", "--settle", "1ms"]
ADDED_MS = 1.0
GROWTH = 0.02


def text(n_words: int) -> str:
    return " ".join((LINE * n_words).split()[:n_words])


def body(n_words: int) -> bytes:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text(n_words)]}
    return json.dumps({"inputs": [tensor]}).encode()


class Connection:
    """A persistent connection; a request is one write."""

    def __init__(self, url: str, model: str = MODEL) -> None:
        self._path = f"/v2/models/{model}/infer"
        self._http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def post(self, content: bytes) -> int:
        self._http.request("POST", self._path, content, {"content-type": "application/json"})
        response = self._http.getresponse()
        response.read()
        return response.status

    def get(self, path: str) -> bytes:
        self._http.request("GET", path)
        return self._http.getresponse().read()

    def seconds(self, content: bytes) -> float:
        start_s = time.perf_counter()
        status = self.post(content)
        assert status == 200, status
        return time.perf_counter() - start_s


@contextmanager
def started(command: list[str], n_urls: int = 1) -> Iterator[tuple[list[str], int]]:
    """The addresses of a server process, and its id."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(n_urls)]
        yield [json.loads(line)["url"] if line.startswith("{") else line for line in lines], process.pid
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_S)
        finally:
            process.kill()


def node(*more: str) -> list[str]:
    return [*NODE, *more]


def percent(values: list[float], q: float) -> float:
    return float(np.quantile(values, q)) * 1e3


def overhead(report: Report, rounds: int, stack: ExitStack) -> None:
    """The same requests, interleaved, to the model, the app without a router, and nodes with 0 and 8
    upstreams.
    """
    late, _ = stack.enter_context(started([sys.executable, str(PEER), MODEL, "--late", str(N_LATE)], N_LATE))
    ups = [word for url in late for word in ("--upstream", url)]
    served = open_endpoint(MODEL, threads=1)
    stack.callback(served.close)
    plain = stack.enter_context(started([sys.executable, str(PEER), MODEL]))[0][0]
    alone = stack.enter_context(started(node()))[0][0]
    routed = stack.enter_context(started(node(*ups)))[0][0]
    wait_for(routed, lambda rows: sum(row["total_s"] is not None for row in rows) == N_LATE + 1)
    content, array = body(WORDS), np.array([text(WORDS).encode()], object)

    def bare() -> float:
        start_s = time.perf_counter()
        served.answer(served.request({"text": array}))
        return time.perf_counter() - start_s

    ways: dict[str, Callable[[], float]] = {"the model alone": bare}
    for name, url in (
        ("the app, no router", plain),
        ("a node", alone),
        (f"a node of {N_LATE} upstreams", routed),
    ):
        connection = Connection(url)
        ways[name] = lambda c=connection: c.seconds(content)  # type: ignore[misc]
    for way in ways.values():
        for _ in range(50):
            way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name in list(ways)[:: 1 if i % 2 else -1]:
            seconds[name].append(ways[name]())
    base = seconds["the app, no router"]

    def added(name: str) -> float:
        return float(np.median(np.array(seconds[name]) - np.array(base))) * 1e3

    report.table(
        f"one client, texts of {WORDS} words, {rounds} requests each in turns (ms)",
        [
            {
                "what": name,
                "median": percent(s, 0.5),
                "p95": percent(s, 0.95),
                "p99": percent(s, 0.99),
                "added by routing": added(name) if "node" in name else "",
            }
            for name, s in seconds.items()
        ],
    )
    value = max(added(name) for name in seconds if "node" in name)
    report.claim(
        "crime.overhead",
        value,
        f"< {ADDED_MS:g} ms at the median",
        value < ADDED_MS,
        f"paired with the same app without a router; with {N_LATE} upstreams and without any",
    )


def hop(report: Report, rounds: int, stack: ExitStack) -> None:
    """The overhead of forwarding a request against sending it to the upstream directly."""
    upstream = stack.enter_context(started(node()))[0][0]
    below = stack.enter_context(started(node("--upstream", upstream, "--dilate", "50")))[0][0]
    wait_for(below, lambda rows: rows[1]["is_chosen"])
    content = body(WORDS)
    direct, passed = Connection(upstream), Connection(below)
    pairs = [(direct.seconds(content), passed.seconds(content)) for _ in range(rounds)]
    a, b = ([pair[i] for pair in pairs[20:]] for i in (0, 1))
    report.table(
        "a hop over loopback (ms)",
        [
            {"what": "asked itself", "median": percent(a, 0.5), "p99": percent(a, 0.99)},
            {"what": "passed on by a node", "median": percent(b, 0.5), "p99": percent(b, 0.99)},
        ],
    )


def wait_for(url: str, holds: Callable[[list[dict[str, object]]], object]) -> None:
    connection, ends_s = Connection(url), time.monotonic() + 60
    while time.monotonic() < ends_s:
        if holds(json.loads(connection.get(f"/v2/pliant/route?length={WORDS}"))["candidates"]):
            return
        time.sleep(0.1)
    raise SystemExit(f"{url} never came to know its upstreams")


@dataclass(slots=True)
class Load:
    """The results of many closed-loop clients."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def growth(self) -> float:
        """Resident memory's relative growth, from the second quarter to the last, medians of each."""
        quarters = np.array_split(np.array([n for _, n in self.resident], float), 4)
        return float(np.median(quarters[3]) / np.median(quarters[1]) - 1.0)


def load(url: str, pid: int, for_s: float) -> Load:
    """N_CLIENTS clients in as many threads; a client retries 10 ms after a 503."""
    found, process, lock = Load(), psutil.Process(pid), threading.Lock()
    ends_s = time.monotonic() + for_s

    def client(number: int) -> None:
        connection, content = Connection(url), body(WORDS + number)
        while time.monotonic() < ends_s:
            start_s = time.perf_counter()
            try:
                status = str(connection.post(content))
            except (OSError, http.client.HTTPException) as error:
                status, connection = type(error).__name__, Connection(url)
            spent_s = time.perf_counter() - start_s
            with lock:
                found.statuses[status] += 1
                if status == "200":
                    found.seconds.append(spent_s)
            if status == "503":
                time.sleep(0.01)

    clients = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    start_s = time.monotonic()
    for thread in clients:
        thread.start()
    while time.monotonic() < ends_s:
        found.resident.append((time.monotonic() - start_s, process.memory_info().rss))
        time.sleep(min(0.25, for_s / 40))
    for thread in clients:
        thread.join()
    found.took_s = time.monotonic() - start_s
    return found


def saturation(report: Report, for_s: float) -> None:
    """Saturation with a queue for all clients, and with a queue of four."""
    rows, holds, worst, growth = [], True, 0.0, 0.0
    for queue in (64, 4):
        with started(node("--queue", str(queue))) as ((url,), pid):
            load(url, pid, min(3.0, for_s / 2))  # warm-up: caches, connections and metrics reach their size
            found = load(url, pid, for_s)
        n = sum(found.statuses.values())
        others = {status: k for status, k in found.statuses.items() if status not in ("200", "503")}
        rows.append(
            {
                "queue": queue,
                "requests": n,
                "200": found.statuses["200"],
                "503": found.statuses["503"],
                "others": str(others or "none"),
                "answers/s": found.statuses["200"] / found.took_s,
                "median ms": percent(found.seconds, 0.5),
                "p99 ms": percent(found.seconds, 0.99),
                "resident MB": found.resident[-1][1] / 1e6,
                "growth": f"{found.growth:+.2%}",
            }
        )
        holds &= not others and found.growth < GROWTH
        worst, growth = max(worst, percent(found.seconds, 0.99)), max(growth, found.growth)
    report.table(f"{N_CLIENTS} clients for {for_s:g} s, one behind the other each", rows)
    report.claim(
        "crime.load",
        f"p99 {worst:.1f} ms, memory {growth:+.2%}",
        f"{N_CLIENTS} clients for a minute: no error but 503, memory grows by less than {GROWTH:.0%}",
        holds,
        "" if for_s >= 60 else f"{for_s:g} s only",
    )


def main() -> None:
    told = options(__doc__ or "", _more)
    workload = f"{MODEL} on one thread, texts of {WORDS} words; nodes, clients and peers share the machine"
    report = Report("crime_node", workload, told)
    rounds = 300 if told.quick else 2000
    with ExitStack() as stack:
        overhead(report, rounds, stack)
    with ExitStack() as stack:
        hop(report, rounds // 2, stack)
    saturation(report, told.seconds or (5.0 if told.quick else 60.0))
    report.finish()


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="seconds of load, instead of 60 or 5")


if __name__ == "__main__":
    main()
