"""[serve.deadline] Overload of a node with deadlines: the answers in time.

64 clients of a sentence encoder from ONNX (that of serve_batch.py) send at 1.5 times the rate at which the
node answers 64 closed-loop clients. Requests are a Poisson process, with deadlines of 20 to 200 ms, measured
by the client from sending a request to its answer. Processes share two cores with the clients, which have
priority (service_open_load.py).

The peer is the same node without deadlines: it answers first come, first served, also in batches, and refuses
only requests beyond its queue. A long queue makes every answer late, so it gets the queue length, of several
tried, with the most answers in time; this peer thus knows the result in advance. A third node, which does not
count for the claim, has the default queue. They are loaded in turns.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from crime_node import PLIANT, started
from paired import paired
from report import Report, options
from serve_batch import LENGTHS, MODEL
from service_load import infer_inputs, load
from service_open_load import OpenLoad, TimedRequest, open_load
from text_models import MINILM, export_pooled

CLIENTS, OVERLOAD = 64, 1.5
DEADLINES_S = (0.02, 0.2)
QUEUES = (4, 8, 16, 32, 64)
DEFAULT_QUEUE = 64
"""The default queue of the first-come-first-served node."""
KEPT, GAIN = 0.99, 1.3
NODE, FIRST = "by slack, refusing", "first come, first served"
UNTUNED = f"{FIRST}, default queue"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one turn: answers in time per second, their fraction of the accepted requests, and the
    accepted fraction.
    """

    goodput: float
    kept: float
    accepted: float


def main() -> None:
    told = options(__doc__ or "")
    for_s, rounds = (2.0, 2) if told.quick else (5.0, 7)
    span = f"{DEADLINES_S[0] * 1e3:g} to {DEADLINES_S[1] * 1e3:g} ms"
    workload = f"{MINILM.name} from ONNX, {LENGTHS[0]} to {LENGTHS[1]} tokens, {CLIENTS} clients, {span}"
    report = Report("serve_deadline", workload, told)
    with TemporaryDirectory() as name, ExitStack() as stack:
        file = export_pooled(MINILM, Path(name) / f"{MODEL}.onnx")
        nodes = {NODE: stack.enter_context(started(_node(file, CLIENTS)))[0][0]}
        capacity = median(_capacity(nodes[NODE], 0.5 * for_s) for _ in range(3))
        report.note(f"Capacity: {capacity:.0f} answers per second; offered {OVERLOAD * capacity:.0f}.")
        queue = _best_queue(file, capacity, for_s, report)
        for name, n in ((FIRST, queue), (UNTUNED, DEFAULT_QUEUE)):
            nodes[name] = stack.enter_context(started(_node(file, n)))[0][0]
        _compare(nodes, capacity, for_s, rounds, report)
    report.finish()


def _node(file: Path, queue: int) -> list[str]:
    more = ["--listen", "127.0.0.1:0", "--json", "--settle", "1ms", "--queue", str(queue)]
    return [*PLIANT, "node", str(file), *more]


def _capacity(url: str, for_s: float) -> float:
    return load(url, _bodies(), CLIENTS, for_s, MODEL).rate


def _bodies() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [_body(rng, None) for _ in range(CLIENTS)]


def _offered(rate: float, for_s: float, seed: int, has_deadline: bool) -> list[TimedRequest]:
    """The requests of all clients together, with independent arrivals."""
    rng = np.random.default_rng(seed)
    at_s, found = 0.0, []
    while (at_s := at_s + float(rng.exponential(1.0 / rate))) < for_s:
        deadline_s = float(rng.uniform(*DEADLINES_S))
        found.append(TimedRequest(at_s, deadline_s, _body(rng, deadline_s if has_deadline else None)))
    return found


def _body(rng: np.random.Generator, deadline_s: float | None) -> bytes:
    n = int(rng.integers(LENGTHS[0], LENGTHS[1] + 1))
    ids = rng.integers(1000, MINILM.vocabulary, (1, n), dtype=np.int64)
    asked = json.loads(infer_inputs({"ids": ids, "mask": np.ones_like(ids)}))
    terms = {} if deadline_s is None else {"parameters": {"deadline_s": deadline_s}}
    return json.dumps(asked | terms).encode()


def _turn(url: str, rate: float, for_s: float, seed: int, has_deadline: bool) -> tuple[Outcome, OpenLoad]:
    found = open_load(url, _offered(rate, for_s, seed, has_deadline), MODEL)
    answered = sum(one.status == 200 for one in found.ended)
    in_time = sum(one.is_in_time for one in found.ended)
    kept = in_time / answered if answered else 0.0
    return Outcome(in_time / found.took_s, kept, answered / len(found.ended)), found


def _best_queue(file: Path, capacity: float, for_s: float, report: Report) -> int:
    """The queue length with which first come, first served has the most answers in time."""
    rows: list[dict[str, object]] = []
    goodputs: dict[int, float] = {}
    for queue in QUEUES:
        with started(_node(file, queue)) as ((url,), _):
            load(url, _bodies(), CLIENTS, 1.0, MODEL)
            outcome, _ = _turn(url, OVERLOAD * capacity, for_s, 0, False)
        goodputs[queue] = outcome.goodput
        rows.append({"queue": queue, "in time a second": outcome.goodput, "of accepted": outcome.kept})
    report.table(f"{FIRST}: its queue", rows)
    return max(goodputs, key=lambda queue: goodputs[queue])


def _compare(nodes: dict[str, str], capacity: float, for_s: float, rounds: int, report: Report) -> None:
    found: dict[str, list[Outcome]] = {name: [] for name in nodes}
    statuses: dict[str, dict[int, int]] = {name: {} for name in nodes}
    late_s = 0.0
    for name, url in nodes.items():
        _turn(url, OVERLOAD * capacity, 1.0, 1, name == NODE)
    for turn in range(rounds):
        for name in list(nodes)[:: 1 if turn % 2 else -1]:
            outcome, loaded = _turn(nodes[name], OVERLOAD * capacity, for_s, 2 + turn, name == NODE)
            found[name].append(outcome)
            late_s = max(late_s, loaded.most_late_s)
            for one in loaded.ended:
                statuses[name][one.status] = statuses[name].get(one.status, 0) + 1
    report.table(
        f"{rounds} turns of {for_s:g} s each",
        [
            {
                "node": name,
                "in time a second": median(one.goodput for one in turns),
                "of accepted in time": median(one.kept for one in turns),
                "accepted": median(one.accepted for one in turns),
                "statuses": str(dict(sorted(statuses[name].items()))),
            }
            for name, turns in found.items()
        ],
    )
    report.note(f"The largest delay of a client in sending a request was {late_s * 1e3:.1f} ms.")
    kept = [one.kept for one in found[NODE]]
    report.claim(
        "serve.deadline",
        median(kept),
        f"at least {KEPT:g} of the accepted requests in time",
        median(kept) >= KEPT,
        f"from {min(kept):.4f} to {max(kept):.4f}",
    )
    goodputs = {name: [one.goodput for one in turns] for name, turns in found.items()}
    gain, untuned = (paired(goodputs[NODE], goodputs[name]) for name in (FIRST, UNTUNED))
    report.claim(
        "serve.deadline",
        gain.value,
        f"at least {GAIN:g} times the answers in time of the same node, {FIRST}, with its best queue",
        gain.value >= GAIN,
        f"{gain}; of one with the default queue {untuned.value:.1f}",
    )


if __name__ == "__main__":
    main()
