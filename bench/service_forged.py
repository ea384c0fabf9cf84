"""[serve.forged] Forged gossip: how long a node sends requests to another endpoint than before.

A dilated end node has a fast upstream and a slow one. An attacker sends it, in the name of each, the opposite
of its true times, with the highest possible stamp. Every answer names the node that made it.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import httpx

from crime_node import MODEL, body, node, started, wait_for
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.route.curve_advert import CurveAdvert
from pliant.route.node_identity import NODE_HEADER
from pliant.route.node_messages import encode_advert
from pliant.serve.upstream.broadcasts import TELL_PATH
from pliant.serve.upstream.upstreams import CURVE_PATH
from report import Report

SLOWER = {"quick": 1, "slow": 30, "end": 100}
WORDS = 1000
_STAMP = (2**53, 2**53)
_FORGED_S = {"quick": 1e6, "slow": 0.0}
_NOBODY = "nobody (control)"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests of a round: their number, the number that moved, and the time of the last one that moved."""

    n: int
    n_moved: int
    moved_for_s: float


def forged(report: Report, is_quick: bool) -> None:
    """The claim, and a row for each name that was forged."""
    n_rounds, for_s = (3, 1.0) if is_quick else (20, 3.0)
    with ExitStack() as stack:
        urls = _started(stack)
        http = stack.enter_context(httpx.Client(timeout=60.0, trust_env=False))
        ask = _asking(http, urls["end"])
        assert ask() == "quick"
        ping_s = median(_seconds(lambda: http.get(urls["quick"] + CURVE_PATH)) for _ in range(20))
        found: dict[str, list[Outcome]] = {name: [] for name in (*_FORGED_S, _NOBODY)}
        for _ in range(n_rounds):
            for name, outcomes in found.items():
                if name in _FORGED_S:
                    _forge(http, urls["end"], name)
                outcomes.append(_ask_on(ask, for_s))
    report.table(
        f"requests in the {for_s:g} s after a forged message", [_row(*named) for named in found.items()]
    )
    worst_s = max(one.moved_for_s for name in _FORGED_S for one in found[name])
    report.claim(
        "serve.forged",
        worst_s,
        f"no request moves for longer than one ping, {ping_s * 1e3:.1f} ms",
        worst_s <= ping_s,
        "seconds from a forged message to the last request that went elsewhere",
    )


def _row(name: str, outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "in the name of": name,
        "forged seconds": _FORGED_S.get(name, ""),
        "rounds": len(outcomes),
        "requests": sum(one.n for one in outcomes),
        "moved": sum(one.n_moved for one in outcomes),
        "moved for at most, ms": max(one.moved_for_s for one in outcomes) * 1e3,
    }


def _started(stack: ExitStack) -> dict[str, str]:
    urls: dict[str, str] = {}
    for name, slower in SLOWER.items():
        above = [word for url in urls.values() for word in ("--upstream", url)]
        words = ("--name", name, "--dilate", str(slower), *above)
        urls[name] = stack.enter_context(started(node(*words)))[0][0]
    wait_for(urls["end"], lambda rows: rows[1]["is_chosen"] and rows[2]["total_s"] is not None)
    return urls


def _asking(http: httpx.Client, url: str) -> Callable[[], str]:
    """A function that sends a request and returns the name of the answering node."""
    content = body(WORDS)

    def ask() -> str:
        answer = http.post(f"{url}/v2/models/{MODEL}/infer", content=content)
        assert answer.status_code == 200, answer.text
        return str(answer.headers[NODE_HEADER])

    return ask


def _forge(http: httpx.Client, url: str, name: str) -> None:
    told = CurveAdvert(name, (ServiceLevel(Curve(((0, _FORGED_S[name]),))),), frozenset({name}), _STAMP)
    answer = http.post(url + TELL_PATH, content=encode_advert(told).encode())
    assert answer.status_code == 200, answer.text


def _ask_on(ask: Callable[[], str], for_s: float) -> Outcome:
    """Send requests, one after another, for `for_s`."""
    start_s = time.perf_counter()
    n = n_moved = 0
    moved_for_s = 0.0
    while (sent_s := time.perf_counter() - start_s) < for_s:
        is_moved = ask() != "quick"
        n, n_moved = n + 1, n_moved + is_moved
        moved_for_s = sent_s if is_moved else moved_for_s
    return Outcome(n, n_moved, moved_for_s)


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
