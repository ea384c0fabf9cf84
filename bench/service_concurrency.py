"""[serve.concurrency] Many clients through a slow node with a fast upstream, against sending to the upstream
directly.

The slow node is dilated by 100. The peer is a bare forwarder (service_peer.py) in its place. All three are
loaded in turns; a figure is the median of the ratios of each turn.

Many clients queue at any fast node: with enough of them, the slow device answers sooner than a forwarded
request, and is the better choice. So the table gives the median time of both, and a light load also goes
through a node dilated by 1000, whose device is always the slower choice.
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
from pliant.api.open_endpoint import open_endpoint
from report import Report
from service_load import MODEL, LoadResults, infer_body, load

SLOWER, SLOWEST = 100, 1000
CLIENTS = (16, 64)
WORDS = 40
HEAVY_S = 6e-3
"""The least time of an answer in the heavy load; the bar requires 5 ms."""
LEAST, MOST_SLOW, MOST_ADDED = 0.8, 0.01, 1.3
_LIGHT = f"{MODEL}, {WORDS} words"
PEER = Path(__file__).with_name("service_peer.py")


@dataclass(frozen=True, slots=True)
class Urls:
    """The fast node, the slow ones below it by their dilation, and the forwarder in their place."""

    quick: str
    slow: dict[int, str]
    forwarder: str


def concurrency(report: Report, is_quick: bool) -> None:
    """The claim's tables, and the overhead of a forwarded request."""
    for_s, rounds = (0.8, 3) if is_quick else (2.0, 7)
    with ExitStack() as stack:
        urls = _started(stack)
        loads = {_LIGHT: body(WORDS), "5 ms and more an answer": _heavy()}
        rows = [
            _row(urls, slower, name, content, n_clients, for_s, rounds)
            for name, content in loads.items()
            for slower in ((SLOWER, SLOWEST) if name == _LIGHT else (SLOWER,))
            for n_clients in CLIENTS
        ]
        report.table(f"clients through a slow node, {rounds} turns of {for_s:g} s", rows)
        _claim(report, rows)
        _added(report, urls, 150 if is_quick else 1000)


def _started(stack: ExitStack) -> Urls:
    quick = stack.enter_context(started(node()))[0][0]
    forwarder = stack.enter_context(started([sys.executable, str(PEER), quick]))[0][0]
    slow = {}
    for slower in (SLOWER, SLOWEST):
        below = node("--upstream", quick, "--dilate", str(slower), "--name", _name(slower))
        slow[slower] = stack.enter_context(started(below))[0][0]
        wait_for(slow[slower], lambda rows: rows[1]["is_chosen"])
    return Urls(quick, slow, forwarder)


def _name(slower: int) -> str:
    return f"slow-{slower}"


def _heavy() -> bytes:
    """A request with as many word ids as take HEAVY_S on this machine; ids are fast to parse."""
    served = open_endpoint(MODEL, threads=1)
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
    urls: Urls, slower: int, name: str, content: bytes, n_clients: int, for_s: float, rounds: int
) -> dict[str, object]:
    ways = {"quick": urls.quick, "forwarder": urls.forwarder, "slow": urls.slow[slower]}
    for url in ways.values():
        load(url, content, n_clients, for_s / 4)  # connections, caches and averages
    found: dict[str, list[LoadResults]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            found[way].append(load(ways[way], content, n_clients, for_s))
    rates = {way: [answers.rate for answers in turns] for way, turns in found.items()}
    statuses = sum((answers.statuses for turns in found.values() for answers in turns), start=Counter())
    by_slow = [s for answers in found["slow"] for s in answers.by_node[_name(slower)]]
    passed_on = [
        s for a in found["slow"] for node, ss in a.by_node.items() for s in ss if node != _name(slower)
    ]
    return {
        "load": name,
        "dilated by": slower,
        "clients": n_clients,
        "directly /s": median(rates["quick"]),
        "forwarder /s": median(rates["forwarder"]),
        "slow node /s": median(rates["slow"]),
        "of directly": paired(rates["slow"], rates["quick"]).value,
        "of the forwarder": paired(rates["slow"], rates["forwarder"]).value,
        "by the slow device": len(by_slow) / (len(by_slow) + len(passed_on)),
        "its median ms": median(by_slow) * 1e3 if by_slow else None,
        "passed on, median ms": median(passed_on) * 1e3,
        "not 200": sum(statuses.values()) - statuses["200"],
    }


def _claim(report: Report, rows: list[dict[str, object]]) -> None:
    light = [row for row in rows if row["load"] == _LIGHT]
    heavy = [row for row in rows if row["load"] != _LIGHT]
    of_directly = min(float(str(row["of directly"])) for row in heavy)
    of_forwarder = min(float(str(row["of the forwarder"])) for row in light)
    shares = {
        slower: max(float(str(row["by the slow device"])) for row in light if row["dilated by"] == slower)
        for slower in (SLOWER, SLOWEST)
    }
    report.claim(
        "serve.concurrency",
        f"{of_directly:.2f} of asking directly, {of_forwarder:.2f} of a forwarder, "
        f"{shares[SLOWER]:.2%} slow ({shares[SLOWEST]:.2%} dilated by {SLOWEST})",
        f"{LEAST:g} and {LEAST:g} at least with {' and '.join(map(str, CLIENTS))} clients, "
        f"under {MOST_SLOW:.0%} of the light answers by the device dilated by {SLOWER}",
        min(of_directly, of_forwarder) >= LEAST
        and shares[SLOWER] < MOST_SLOW
        and all(row["not 200"] == 0 for row in rows),
        "the worst row of each",
    )


def _added(report: Report, urls: Urls, rounds: int) -> None:
    """One client: the overhead of the node and of the forwarder over sending to the upstream.

    After the load the node answers itself until the upstream's waiting times have faded from its estimate.
    """
    content, start_s = body(WORDS), time.perf_counter()
    wait_for(urls.slow[SLOWER], lambda rows: rows[1]["is_chosen"])
    faded_s = time.perf_counter() - start_s
    ways = {"asked itself": urls.quick, "the forwarder": urls.forwarder, "the slow node": urls.slow[SLOWER]}
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
        f"{added['the slow node']:.2f} ms beside {added['the forwarder']:.2f} ms, paired; "
        f"{faded_s:.1f} s after the load",
    )
