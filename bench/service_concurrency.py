"""[serve.concurrency] Many clients through a slow node with a quick upstream, beside asking that directly.

The slow node is dilated by 100. Beside it stands a bare forwarder (service_peer.py) in its place. All three
are asked in turns; a figure is the median of the ratios of each turn.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from crime_node import Connection, body, node, started, wait_for
from paired import paired
from pliant.serve.node.served import open_served
from report import Report
from service_load import MODEL, Answers, infer_body, load

SLOWER = 100
CLIENTS = (16, 64)
WORDS = 40
HEAVY_S = 6e-3
"""What an answer of the heavy load takes at least; the bar asks for 5 ms."""
LEAST, MOST_SLOW, MOST_ADDED = 0.8, 0.01, 1.3
PEER = Path(__file__).with_name("service_peer.py")


@dataclass(frozen=True, slots=True)
class Urls:
    """The quick node, the slow one below it, and the forwarder in the place of that."""

    quick: str
    slow: str
    forwarder: str


def concurrency(report: Report, is_quick: bool) -> None:
    """The claim's tables, and the cost of one request that is passed on."""
    for_s, rounds = (0.8, 3) if is_quick else (2.0, 7)
    with ExitStack() as stack:
        urls = _started(stack)
        loads = {f"{MODEL}, {WORDS} words": body(WORDS), "5 ms and more an answer": _heavy()}
        rows = [
            _row(urls, name, content, n_clients, for_s, rounds)
            for name, content in loads.items()
            for n_clients in CLIENTS
        ]
        report.table(f"clients through a node dilated by {SLOWER}, {rounds} turns of {for_s:g} s", rows)
        _claim(report, rows)
        _added(report, urls, 150 if is_quick else 1000)


def _started(stack: ExitStack) -> Urls:
    quick = stack.enter_context(started(node()))[0][0]
    forwarder = stack.enter_context(started([sys.executable, str(PEER), quick]))[0][0]
    slow = stack.enter_context(started(node("--upstream", quick, "--dilate", str(SLOWER))))[0][0]
    wait_for(slow, lambda rows: rows[1]["is_chosen"])
    return Urls(quick, slow, forwarder)


def _heavy() -> bytes:
    """As many words as take HEAVY_S on this machine, by number: reading them takes little."""
    served = open_served(MODEL, preload="0", threads=1)
    try:
        n = 4096
        request = served.request(served.sample(n))
        least_s = min(_seconds(lambda: served.answer(request)) for _ in range(5))
    finally:
        served.close()
    n = min(int(n * HEAVY_S / least_s), served.max_length)
    ids = [1 + i % 1000 for i in range(n)]
    return infer_body({"name": "ids", "shape": [1, n], "datatype": "INT64", "data": ids})


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _row(
    urls: Urls, name: str, content: bytes, n_clients: int, for_s: float, rounds: int
) -> dict[str, object]:
    ways = {"quick": urls.quick, "forwarder": urls.forwarder, "slow": urls.slow}
    for url in ways.values():
        load(url, content, n_clients, for_s / 4)  # connections, caches and averages
    found: dict[str, list[Answers]] = {way: [] for way in ways}
    before = _answered_here(urls.slow)
    for turn in range(rounds):
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            found[way].append(load(ways[way], content, n_clients, for_s))
    n_slow = _answered_here(urls.slow) - before
    rates = {way: [answers.rate for answers in turns] for way, turns in found.items()}
    statuses = sum((answers.statuses for turns in found.values() for answers in turns), start=Counter())
    n_through = sum(answers.statuses["200"] for answers in found["slow"])
    return {
        "load": name,
        "clients": n_clients,
        "directly /s": median(rates["quick"]),
        "forwarder /s": median(rates["forwarder"]),
        "slow node /s": median(rates["slow"]),
        "of directly": paired(rates["slow"], rates["quick"]).value,
        "of the forwarder": paired(rates["slow"], rates["forwarder"]).value,
        "by the slow device": n_slow / max(n_through, 1),
        "median ms": median(s for answers in found["slow"] for s in answers.seconds) * 1e3,
        "not 200": sum(statuses.values()) - statuses["200"],
    }


def _claim(report: Report, rows: list[dict[str, object]]) -> None:
    light = [row for row in rows if str(row["load"]).startswith(MODEL)]
    heavy = [row for row in rows if row not in light]
    of_directly = min(float(str(row["of directly"])) for row in heavy)
    of_forwarder = min(float(str(row["of the forwarder"])) for row in light)
    share = max(float(str(row["by the slow device"])) for row in light)
    report.claim(
        "serve.concurrency",
        f"{of_directly:.2f} of asking directly, {of_forwarder:.2f} of a forwarder, {share:.2%} slow",
        f"{LEAST:g} and {LEAST:g} at least with {' and '.join(map(str, CLIENTS))} clients, "
        f"under {MOST_SLOW:.0%} of the light answers by the slow device",
        min(of_directly, of_forwarder) >= LEAST
        and share < MOST_SLOW
        and all(row["not 200"] == 0 for row in rows),
        "the worst row of each",
    )


def _added(report: Report, urls: Urls, rounds: int) -> None:
    """One client: what being passed on adds to asking the upstream, by the node and by the forwarder."""
    content = body(WORDS)
    ways = {"asked itself": urls.quick, "the forwarder": urls.forwarder, "the slow node": urls.slow}
    connections = {name: Connection(url) for name, url in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 20):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            seconds[name].append(connections[name].seconds(content))
    kept = {name: np.array(s[20:]) for name, s in seconds.items()}
    added = {name: float(np.median(s - kept["asked itself"])) * 1e3 for name, s in kept.items()}
    report.table(
        "one client: what being passed on adds (ms)",
        [
            {"what": name, "median": float(np.median(s)) * 1e3, "added": added[name]}
            for name, s in kept.items()
        ],
    )
    ratio = added["the slow node"] / added["the forwarder"]
    report.claim(
        "serve.forwarded",
        ratio,
        f"a node adds at most {MOST_ADDED:g} times what a bare forwarder adds",
        ratio <= MOST_ADDED,
        f"{added['the slow node']:.2f} ms beside {added['the forwarder']:.2f} ms, paired",
    )


def _answered_here(url: str) -> float:
    """How many requests the node's own device has answered."""
    line = 'pliant_requests_total{outcome="ok",target="local"} '
    for said in Connection(url).get("/metrics").decode().splitlines():
        if said.startswith(line):
            return float(said.removeprefix(line))
    return 0.0
