"""[slo.overhead] The cost of choosing an endpoint, and of a hop against a bare forwarder.

The choice is that of a node or routed session for each request: the router gets queues and levels of a local
and a cluster endpoint, and compares them with three upstreams that have requests in flight, four levels of
accuracy each. The hop is a request through a node to its upstream and back; the peer is a forwarder of
Starlette and httpx (service_peer.py), and all are measured in turns.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from crime_node import MODEL, Connection, node, started, text, wait_for
from paired import paired
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.link import Link
from pliant.ir.times.level_selector import Level, LevelSelector
from pliant.ir.times.timing import Timing
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.run.session.session import Session
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.dispatch import Dispatcher
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.routed_request import RoutedRequest
from pliant.serve.answers.session_endpoint import SessionEndpoint
from pliant.serve.protocol.inference import InferBody, InferRequest, Signature
from pliant.serve.protocol.pending_request import PendingRequest
from report import Report
from service_concurrency import PEER

CHOICE_US, HOP = 100.0, 1.3
N_UPSTREAMS = 3
ACCURACIES = (0.80, 0.85, 0.88, 0.91)
RANGES = ((0, 16), (17, 32), (33, 64), (65, 128))
TERMS: Mapping[str, Terms] = {
    "none": NO_TERMS,
    "deadline": Terms(0.05),
    "floor": Terms(accuracy_floor=0.86),
    "deadline and floor": Terms(0.05, 0.84),
    "deadline, best effort": Terms(0.002, 0.84, best_effort=True),
}
_WORDS = 40
_SLOWER = 100


def overhead(report: Report, is_quick: bool) -> None:
    """Tables of the choice and of the hop, and a claim for each."""
    _choices(report, 2_000 if is_quick else 20_000)
    _hops(report, 300 if is_quick else 1500)


@dataclass(frozen=True, slots=True)
class _Elastic:
    """The parts of an elastic session that a choice uses."""

    trade: LevelSelector

    def levels(self) -> tuple[ServiceLevel, ...]:
        return self.trade.levels()

    look_again, compiling = Session.look_again, Session.compiling


def _choices(report: Report, n_calls: int) -> None:
    clock = time.perf_counter_ns
    made = _dispatcher()
    found: dict[str, list[int]] = {name: [] for name in TERMS}
    for turn in range(20):
        for name in list(TERMS)[:: 1 if turn % 2 else -1]:
            kept = found[name]
            for i in range(n_calls // 20):
                asked = _inquiry(TERMS[name], 8 + (turn + i) % 32)
                start_ns = clock()
                made.choose(asked)
                kept.append(clock() - start_ns)
    rows = []
    for name, nanoseconds in found.items():
        p50, p99 = np.quantile(np.asarray(nanoseconds) / 1e3, (0.5, 0.99))
        rows.append({"terms": name, "median, us": p50, "p99, us": p99})
    report.table(f"a choice among local, cluster and {N_UPSTREAMS} upstreams, {n_calls} each", rows)
    worst = max(rows, key=lambda row: float(row["median, us"]))
    most = max(float(row["p99, us"]) for row in rows)
    report.claim(
        "slo.overhead",
        float(worst["median, us"]),
        f"the choice takes under {CHOICE_US:g} microseconds",
        float(worst["median, us"]) < CHOICE_US,
        f"median; {worst['terms']}, the slowest of {len(rows)} rows; 99 of 100 under {most:.0f}",
    )


def _dispatcher() -> Dispatcher:
    router = Router("me", RouterSettings(512))
    metrics = Metrics()
    here = {}
    for name, whole_s in ((LOCAL, 0.02), (CLUSTER, 0.012)):
        if name != LOCAL:
            router.add_endpoint(name)
        session: Any = _Elastic(LevelSelector(_levels(whole_s), name))
        here[name] = SessionEndpoint(session, router, Admission(64), metrics, lambda: None, name=name)
    now_s = time.monotonic()
    for i in range(N_UPSTREAMS):
        name, node_name = f"http://up{i}:8080", f"up{i}"
        router.add_successor(name, Link(0.005, 1e7))
        told = LevelSelector(_levels(0.004 * (i + 1)), name).levels()
        router.record_ping(name, 0.005, 0.0, CurveAdvert(node_name, told, frozenset({node_name})), now_s)
        for _ in range(3):
            router.send(name, router.enter(name, 40, now_s), now_s)
    return Dispatcher(router, here, metrics, Signature(MODEL, "bench", (), (), ()))


def _levels(whole_s: float) -> list[Level]:
    """The levels of an elastic endpoint whose whole model takes `whole_s` for the longest of the first
    inputs.
    """
    return [
        Level(first, last, f"{accuracy}", accuracy, accuracy, _ends(whole_s, accuracy, first, last))
        for first, last in RANGES
        for accuracy in ACCURACIES
    ]


def _ends(whole_s: float, accuracy: float, first: int, last: int) -> tuple[Timing, Timing]:
    share = (accuracy - 0.7) / (ACCURACIES[-1] - 0.7) * whole_s / RANGES[0][1]
    low, high = (Timing(share * (n + 4), 1.3 * share * (n + 4)) for n in (first, last))
    return low, high


def _inquiry(terms: Terms, n: int) -> RoutedRequest:
    due_s = None if terms.deadline_s is None else time.monotonic() + terms.deadline_s
    given = Request(n, tensors={"ids": np.zeros((1, 1), np.int64)})
    pending = PendingRequest(given, due_s, terms.accuracy_floor, bool(terms.best_effort))
    request = InferRequest("id", {}, (), NO_TERMS)
    return RoutedRequest(request, pending, Trail().visit("me"), "id", lambda: InferBody(b"", None))


def _hops(report: Report, rounds: int) -> None:
    with ExitStack() as stack:
        above = stack.enter_context(started(node()))[0][0]
        forwarder = stack.enter_context(started([sys.executable, str(PEER), above]))[0][0]
        below = stack.enter_context(started(node("--upstream", above, "--dilate", str(_SLOWER))))[0][0]
        wait_for(below, lambda rows: rows[1]["is_chosen"])
        urls = {"asked itself": above, "the forwarder": forwarder, "the node": below}
        ways = {name: Connection(url) for name, url in urls.items()}
        rows = []
        for terms, content in (("none", _body()), ("deadline", _body(deadline_s=5.0))):
            rows.append(_row(terms, _in_turns(ways, content, rounds)))
    report.table(f"a hop over loopback, {MODEL}, {_WORDS} words, {rounds} requests in turns (ms)", rows)
    for row in rows:
        ratio = float(row["the node adds"]) / float(row["the forwarder adds"])
        report.claim(
            "slo.overhead",
            ratio,
            f"a hop adds at most {HOP:g} times what a forwarder of Starlette and httpx adds",
            ratio <= HOP,
            f"terms: {row['terms']}; the whole request takes {row['whole, of the forwarder']} of the "
            "forwarder's",
        )


def _body(**parameters: float) -> bytes:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text(_WORDS)]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def _in_turns(ways: Mapping[str, Connection], content: bytes, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 50):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            seconds[name].append(ways[name].seconds(content))
    return {name: found[50:] for name, found in seconds.items()}


def _row(terms: str, seconds: Mapping[str, list[float]]) -> dict[str, object]:
    alone = np.array(seconds["asked itself"])
    added = {name: float(np.median(np.array(found) - alone)) * 1e3 for name, found in seconds.items()}
    return {
        "terms": terms,
        **{name: median(found) * 1e3 for name, found in seconds.items()},
        "the forwarder adds": added["the forwarder"],
        "the node adds": added["the node"],
        "whole, of the forwarder": str(paired(seconds["the node"], seconds["the forwarder"])),
    }
