"""`crime.faults`: three real nodes during two hours of a RIPE series, with link failures and killed nodes.

An end node, a gateway and a cloud, each a process in its own namespace, answer IMDB reviews with the shipped
LSTM. The link between gateway and cloud follows two hours of a RIPE Atlas series, lost probes (the link is
down) included: inputs and rows of the series follow one another 20 times as fast as measured, but round trips
are not shortened. Meanwhile nodes are killed (SIGKILL) and restarted, and links are disconnected. Every
answer is compared with the local model's, and every execution is counted by its request's id.
"""

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
import pliant
from crime_nodes import NodeAnswer, NodeClient, check_bed, reviews, traces
from report import Claim, Report, options
from research.series import LinkSeries, Trace
from testbed import DeviceSpec, rate
from testbed.inside import inside
from testbed.nodes import NodeBed, open_nodes

MODEL = "imdb-lstm"
NAMES = ("end", "gateway", "cloud")
SLOWER = (300.0, 120.0, 4.0)
BLE_RTT_S = 0.06
LINK = "100Mbit"
TRACE_S, QUICK_S = 7200.0, 600.0
SPEED = 20.0
"""Seconds of the series per second of the clock."""
INPUT_EVERY_S, FAULT_EVERY_S = 8.0, 400.0
LOW_S, HIGH_S = 0.1, 0.245
KINDS = (
    "cloud killed",
    "end's cable pulled",
    "gateway killed",
    "cloud's cable pulled",
    "gateway and cloud killed",
    "gateway's cable pulled",
    "end killed",
)
TOLERANCE = 1e-5
_CLIENTS = 32


def window(seconds: float) -> tuple[Trace, int]:
    """The first window in which two to a quarter of the probes are lost, and the rest took 100 to 245 ms."""
    for trace in traces():
        for first in range(0, len(trace.times_s), 15):
            end = first
            while end < len(trace.times_s) and trace.times_s[end] < trace.times_s[first] + seconds:
                end += 1
            rtts_s = trace.rtts_s[first:end]
            kept = [rtt for rtt in rtts_s if rtt is not None]
            n_lost = len(rtts_s) - len(kept)
            is_whole = end < len(trace.times_s) and len(rtts_s) >= seconds / 300.0
            if is_whole and 2 <= n_lost <= len(rtts_s) / 4 and min(kept) >= LOW_S and max(kept) <= HIGH_S:
                return trace, first
    raise SystemExit("no series has such a window")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `from_s` to `to_s` of the series."""

    kind: str
    from_s: float
    to_s: float


def plan_faults(seconds: float, seed: int) -> list[Fault]:
    """One fault per 400 seconds of the series, kinds in turn, each for 100 to 300 seconds."""
    rng = random.Random(seed)
    found = []
    for number in range(int(seconds // FAULT_EVERY_S)):
        from_s = number * FAULT_EVERY_S + rng.uniform(20.0, 80.0)
        found.append(Fault(KINDS[number % len(KINDS)], from_s, from_s + rng.uniform(100.0, 300.0)))
    return found


@dataclass(frozen=True, slots=True)
class Request:
    """One input: when it was sent (seconds of the series), the active fault, and the result."""

    id: str
    at_s: float
    broken: str
    answered: NodeAnswer
    is_right: bool


@final
class _Rig:
    """The testbed, its current fault, and the correct answers."""

    def __init__(self, bed: NodeBed, asker: NodeClient, texts: Sequence[str]) -> None:
        self._bed, self._asker, self._texts = bed, asker, texts
        model = pliant.open(MODEL, threads=1)
        self._right = [model(text) for text in texts]
        model.close()
        self._pulled: set[str] = set()
        self._is_lost = False
        self._now: list[str] = []

    def ask(self, number: int, at_s: float) -> Request:
        text, right = self._texts[number], self._right[number]
        broken = " and ".join(self._now) or ("probe lost" if self._is_lost else "nothing")
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
        answered = self._asker.ask(f"input-{number}", [tensor])
        logits = np.array(answered.outputs["logits"])
        is_near = bool(np.abs(logits - right.logits).max() <= TOLERANCE)
        is_right = is_near and answered.outputs["label"] == [right.label]
        return Request(f"input-{number}", at_s, broken, answered, is_right)

    def follow(self, series: LinkSeries, at_s: float) -> None:
        """Set the link to the cloud to its state at a time of the series."""
        link = series.at(at_s, 0.0)
        self._is_lost = link is None
        if link is not None:
            self._bed.network.set_delay("cloud", link.latency_s / 2.0)
        self._plug("cloud")

    def strike(self, kind: str) -> None:
        self._now.append(kind)
        for name in _struck(kind):
            if "cable" in kind:
                self._pulled.add(name)
                self._plug(name)
            else:
                self._bed.network[name].kill()

    def mend(self, kind: str) -> None:
        for name in _struck(kind):
            if "cable" in kind:
                self._pulled.discard(name)
                self._plug(name)
            else:
                self._bed.start(name)
        self._now.remove(kind)

    def _plug(self, name: str) -> None:
        is_down = name in self._pulled or (name == "cloud" and self._is_lost)
        (self._bed.network.cut if is_down else self._bed.network.restore)(name)


def _struck(kind: str) -> list[str]:
    return [name for name in NAMES if name in kind]


def measure(seconds: float, seed: int) -> tuple[list[Request], dict[str, list[str]], list[Fault], str]:
    """(requests, executing nodes by id in order, faults, which window of which series)."""
    trace, first = window(TRACE_S)
    series = trace.window(first, seconds, rate(LINK))
    n_inputs = round(seconds / INPUT_EVERY_S)
    faults = plan_faults(seconds, seed)
    rng = random.Random(seed)
    texts = reviews(n_inputs, seed)
    with TemporaryDirectory() as name:
        specs = [
            DeviceSpec(device, slower=slower, bandwidth_Bps=rate(LINK), delay_s=delay_s)
            for device, slower, delay_s in zip(NAMES, SLOWER, (BLE_RTT_S / 2.0, None, 0.0), strict=True)
        ]
        upstreams = {"end": ["gateway"], "gateway": ["cloud"]}
        with open_nodes(specs, upstreams, MODEL, Path(name)) as bed, inside(bed.network["end"]):
            asker = NodeClient(bed, MODEL, "end")
            rig = _Rig(bed, asker, texts)
            events: list[tuple[float, Callable[[], object]]] = []
            waiting: list[Future[Request]] = []
            with ThreadPoolExecutor(_CLIENTS) as pool:
                arrivals = sorted(rng.uniform(0.0, seconds) for _ in range(n_inputs))
                for number, at_s in enumerate(arrivals):
                    events.append((at_s, lambda n=number, t=at_s: waiting.append(pool.submit(rig.ask, n, t))))
                events += [(at_s, lambda t=at_s: rig.follow(series, t)) for at_s in series.starts]
                for fault in faults:
                    events.append((fault.from_s, lambda kind=fault.kind: rig.strike(kind)))
                    events.append((fault.to_s, lambda kind=fault.kind: rig.mend(kind)))
                _play(events)
                requests = [future.result() for future in waiting]
            asker.close()
            executed: dict[str, list[str]] = defaultdict(list)
            for node in NAMES:
                for done in bed.executed(node):
                    executed[done.id].append(node)
    where = f"{trace.name} from {trace.begins:%Y-%m-%d} + {trace.times_s[first] / 3600:.1f} h"
    return requests, executed, faults, where


def _play(events: list[tuple[float, Callable[[], object]]]) -> None:
    """Run each event at its time of the series."""
    start_s = time.monotonic()
    for at_s, happen in sorted(events, key=lambda event: event[0]):
        time.sleep(max(0.0, start_s + at_s / SPEED - time.monotonic()))
        happen()


def summary(requests: Sequence[Request], executed: dict[str, list[str]]) -> list[dict[str, Any]]:
    """A row for each fault, with the requests during it."""
    rows = []
    for broken in ("nothing", "probe lost", *KINDS, "all"):
        mine = [r for r in requests if broken in ("all", r.broken)]
        if not mine:
            continue
        by = Counter(executed[r.id][-1] for r in mine if executed[r.id])
        seconds = [r.answered.seconds for r in mine]
        rows.append(
            {
                "broken when it came": broken,
                "requests": len(mine),
                "right": sum(r.is_right for r in mine),
                **{f"executed by {name}": by[name] for name in NAMES},
                "executed on a second node too": sum(len(set(executed[r.id])) > 1 for r in mine),
                "executed twice by one": sum(len(set(executed[r.id])) < len(executed[r.id]) for r in mine),
                "sent again": sum(r.answered.n_sent > 1 for r in mine),
                "median [s]": median(seconds),
                "worst [s]": max(seconds),
            }
        )
    return rows


def claims(
    requests: Sequence[Request], executed: dict[str, list[str]], seconds: float, where: str
) -> list[Claim]:
    """Whether every request was answered once, correctly."""
    right = sum(r.is_right for r in requests)
    twice = sum(len(set(nodes)) < len(nodes) for nodes in executed.values())
    second = sum(len(set(nodes)) > 1 for nodes in executed.values())
    none = sum(not executed[r.id] for r in requests)
    is_whole = seconds >= TRACE_S
    return [
        Claim(
            "crime.faults",
            f"{right} of {len(requests)} right, {twice} executed twice by a node",
            "2 hours of the series, every request answered once, as the local model does",
            right == len(requests) and not twice and not none and is_whole,
            f"series {where}; {second} were also executed on a second node, because the first one was killed "
            "or disconnected with the request: the client got one answer",
        )
    ]


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    check_bed()
    seconds = QUICK_S if opts.quick else TRACE_S
    report = Report("crime_faults", f"{MODEL}, IMDB reviews, DAG B as three processes, {LINK}/s", opts)
    requests, executed, faults, where = measure(seconds, opts.seed)
    report.note(
        f"Devices are dilated ({', '.join(f'{n} {s:g} x' for n, s in zip(NAMES, SLOWER, strict=True))}); the "
        f"end node's link has a round trip of {BLE_RTT_S * 1e3:.0f} ms, the cloud's that of RIPE Atlas "
        f"series {where}, of which {seconds / 3600:.2f} h pass {SPEED:g} times as fast; round trips are not "
        "shortened. A request to a dead end node was sent again with its id."
    )
    report.table("Requests", summary(requests, executed))
    report.table(
        "Faults",
        [{"fault": f.kind, "from [s of the series]": f.from_s, "to [s]": f.to_s} for f in faults],
    )
    report.claims += claims(requests, executed, seconds, where)
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, inputs and faults")


if __name__ == "__main__":
    sys.exit(main())
