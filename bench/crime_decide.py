"""The time of a node's decision: a choice among up to 8 successors, and the calls around it, in microseconds.

The paper allows its engine 1 ms per inference on a Cortex-A53 (5.1). Each call is timed separately, including
the overhead of the clock. In the rows `fresh`, a successor sends another curve before every choice, which is
the worst case. Curves are those of a gateway (6 points) and of a device that runs attention, sent finely (30
points), in turns.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pliant.ir.curve import Curve, line, minimum
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.link import Link
from pliant.ir.times.piecewise import Quadratic, piecewise
from pliant.route.choice.energy import A53_COVE, LTE
from pliant.route.choice.objective import Objective
from pliant.route.curve_advert import CurveAdvert
from pliant.route.node_messages import NodeTime, decode_advert, encode_advert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings, paper_settings
from report import Report, options

MAX_N = 512
MOST = 8
BAR_US = 50.0
PAPER_US = 1000.0


@dataclass(frozen=True, slots=True)
class Calls:
    """One thing a router does: `prepare` what comes before it, untimed, then `call`."""

    name: str
    call: Callable[[int], object]
    prepare: Callable[[int], object] | None = None


def main() -> None:
    arguments = options(__doc__.splitlines()[0])
    n_calls = 4_000 if arguments.quick else 40_000
    report = Report("crime_decide", f"{n_calls} calls a row, rows in turns of {n_calls // 20}", arguments)
    deciding = [calls for n in (1, 2, 4, MOST) for calls in _decisions(n)]
    times = _timed([*deciding, *_events()], n_calls)
    report.table("a decision", [_row(c.name, times[c.name]) for c in deciding])
    report.table("what surrounds it", [_row(name, t) for name, t in times.items() if "choose" not in name])
    _claims(report, times, arguments)
    report.finish()


def _claims(report: Report, times: dict[str, np.ndarray], arguments: argparse.Namespace) -> None:
    worst = max(np.quantile(t, 0.99) for name, t in times.items() if f"choose, {MOST} " in name)
    report.claim(
        "crime.decide",
        float(worst),
        f"99th percentile of a decision among {MOST} successors under {BAR_US:.0f} microseconds",
        bool(worst < BAR_US),
        "the slowest row: with a new curve before each choice",
    )
    whole = sum(
        float(np.quantile(times[name], 0.99)) for name in (f"choose, {MOST} upstreams, fresh", *_EACH)
    )
    report.claim(
        "crime.engine",
        whole,
        f"choice, answer, local sample and new curve together under the paper's {PAPER_US:.0f} microseconds",
        whole < PAPER_US,
        "sum of 99th percentiles; the paper's figure is on a Cortex-A53",
    )


_EACH = ("answered by a successor", "answered here, refits among them", "what predecessors are told, changed")


def _decisions(n: int) -> Iterator[Calls]:
    router, energetic = _router(n, RouterSettings(MAX_N)), _router(n, _battery())
    mixed = Objective(1.0, 0.5)
    yield Calls(f"choose, {n} upstreams", lambda i: router.choose(i % MAX_N, 1.0))
    yield Calls(f"choose, {n} upstreams, time and energy", lambda i: energetic.choose(i % MAX_N, 1.0, mixed))
    yield Calls(
        f"choose, {n} upstreams, fresh",
        lambda i: router.choose(i % MAX_N, 1.0),
        lambda i: _stir(router, i, n),
    )


def _events() -> Iterator[Calls]:
    router = _router(MOST, RouterSettings(MAX_N))
    plain = _router(MOST, paper_settings(MAX_N, window=64, refit_every=16))
    word = router.advertise(1.0)
    text = encode_advert(word, NodeTime(0.01))
    rng = np.random.default_rng(1)
    lengths, noise = rng.integers(1, 60, 1 << 12).tolist(), rng.normal(1, 0.03, 1 << 12).tolist()

    def here(node: Router) -> Callable[[int], object]:
        return lambda i: node.record_local_answer(
            lengths[i % 4096], (0.01 + 0.01 * lengths[i % 4096]) * noise[i % 4096], 1.0
        )

    yield Calls("answered by a successor", lambda i: _answer(router, i, MOST))
    yield Calls("answered here, refits among them", here(_router(MOST, RouterSettings(MAX_N))))
    yield Calls("answered here, refits among them (the paper's)", here(plain))
    yield Calls(
        "what predecessors are told, changed",
        lambda _: router.advertise(1.0),
        lambda i: _stir(router, i, MOST),
    )
    yield Calls(
        "minimum of 9 curves, 6 to 30 points", lambda _: minimum([_curve(i) for i in range(9)], MAX_N)
    )
    yield Calls("due, nothing to do", lambda _: plain.take_due_tasks(1.0))
    yield Calls("encode a word", lambda _: encode_advert(word, NodeTime(0.01)))
    yield Calls("decode and check a word", lambda _: decode_advert(text))


def _timed(calls: list[Calls], n_calls: int) -> dict[str, np.ndarray]:
    """Microseconds of each call, with rows interleaved, so that load affects all of them."""
    clock = time.perf_counter_ns
    found: dict[str, list[int]] = {c.name: [] for c in calls}
    turn = n_calls // 20
    for start in range(0, n_calls, turn):
        for c in calls:
            kept, call, prepare = found[c.name], c.call, c.prepare
            for i in range(start, start + turn):
                if prepare is not None:
                    prepare(i)
                before = clock()
                call(i)
                kept.append(clock() - before)
    return {name: np.asarray(t) / 1e3 for name, t in found.items()}


def _row(name: str, microseconds: np.ndarray) -> dict[str, object]:
    p50, p99, p999 = np.quantile(microseconds, (0.5, 0.99, 0.999))
    return {"what": name, "p50, us": p50, "p99, us": p99, "p99.9, us": p999, "mean, us": microseconds.mean()}


def _battery() -> RouterSettings:
    return RouterSettings(MAX_N, power=A53_COVE, radio=LTE)


def _router(n: int, settings: RouterSettings) -> Router:
    router = Router("me", settings, line(0.005, 0.012, MAX_N))
    for i in range(n):
        name = f"up{i}"
        router.add_successor(name, Link(0.05, 250e3))
        router.record_ping(
            name, 0.05 + 0.01 * i, 0.0, CurveAdvert(name, (ServiceLevel(_curve(i)),), frozenset({name})), 0.0
        )
    router.take_due_tasks(0.0)
    router.choose(10, 0.0)
    return router


_LINES = minimum([line(0.004, 0.006, MAX_N), line(0.05, 0.002, MAX_N), line(0.12, 0.0005, MAX_N)], MAX_N)
_ATTENTION = piecewise(Quadratic(2e-3, 5e-5, 1e-6), MAX_N, 0.0012)


def _curve(i: int) -> Curve:
    return _LINES if i % 2 else _ATTENTION


_WORDS = [CurveAdvert("up", (ServiceLevel(_curve(i)),), frozenset({"up"}), (i, 0)) for i in range(2)]


def _stir(router: Router, i: int, n: int) -> None:
    """One of the successors sends a new curve."""
    router.record_advert(f"up{i % n}", _WORDS[i // n % 2], 1.0)


def _answer(router: Router, i: int, n: int) -> None:
    """One of the successors answers, its round trip within 12 % of the others."""
    name, length = f"up{i % n}", 10 + i % 40
    away_s = 0.05 * (1.0 + 0.12 * (i * 37 % 17) / 17)
    router.record_answer(name, length, 6 * length, 8, away_s + 0.02, 0.02, None, 1.0 + 1e-3 * i)


if __name__ == "__main__":
    main()
