"""`serve.soak`: a node under 64 clients while models are loaded and unloaded, and its upstream is frozen and
killed.

A node of three models, emulated to be slower than its upstream, serves 64 closed-loop clients. Each minute a
model is unloaded and loaded again through the repository API, and the upstream is stopped (SIGSTOP),
continued (SIGCONT), killed (SIGKILL) and restarted. Every answer is compared with the local model's, which
was computed beforehand; every request has an id, which its answer must repeat, and the node's count of
answers must equal that of the clients.
"""

import argparse
import http.client
import itertools
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pliant.api.open_endpoint import open_endpoint
from report import Report, options
from serve_soak_rig import (
    COMES_AND_GOES,
    DILATION,
    MODELS,
    N_CLIENTS,
    PATIENCE_S,
    Process,
    Step,
    nodes,
    steps,
)

N_TEXTS = 48
WORDS = "the film was a charming and often affecting journey through what nobody wanted to see".split()  # noqa: SIM905
CYCLE_S = 60.0
SETTLED_S = 300.0
N_SPANS = 10
TOLERANCE = 1e-3
"""The tolerance of logits: float32 sums in another order when requests run together."""
GROWTH, RIGHT = 0.03, 0.999


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The input for a model, with the logits and label of the correct answer."""

    model: str
    body: bytes
    logits: np.ndarray
    label: str

    def is_right(self, answer: Mapping[str, Any]) -> bool:
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        logits = np.array(outputs["logits"], np.float32).reshape(-1)
        is_close = np.allclose(logits, self.logits, atol=TOLERANCE, rtol=TOLERANCE)
        return bool(is_close) and outputs["label"] == [self.label]


def questions(model: str, rng: np.random.Generator) -> list[ModelInput]:
    """Texts of 4 to 40 words with the answers of the model in this process."""
    found = []
    with open_endpoint(model, threads=1) as session:
        for _ in range(N_TEXTS):
            text = " ".join(rng.choice(WORDS, int(rng.integers(4, 41))))
            reply = session(text)
            tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
            body = json.dumps({"inputs": [tensor]}).encode()
            logits = np.asarray(reply.outputs["logits"]).reshape(-1)
            found.append(ModelInput(model, body, logits, str(reply.label)))
    return found


@dataclass(slots=True)
class ClientResults:
    """The clients' results, by model and outcome; `seconds` of correct answers."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, model: str, outcome: str, seconds: float) -> None:
        with self.lock:
            self.outcomes[model, outcome] += 1
            if outcome == "right":
                self.seconds.append(seconds)

    def n(self, *outcomes: str, model: str | None = None) -> int:
        found = self.outcomes.items()
        return sum(k for (of, outcome), k in found if outcome in outcomes and model in (None, of))


def ask_until(
    stop: threading.Event, url: str, asked: Sequence[ModelInput], number: int, seen: ClientResults
) -> None:
    """One client, which retries when it is told to, and counts the outcome of each request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    run = secrets.token_hex(4)
    order = np.random.default_rng(number)
    for i in itertools.count():
        if stop.is_set():
            connection.close()
            return
        question = asked[int(order.integers(len(asked)))]
        id = f"{run}-{number}-{i}"
        body = b'{"id": "' + id.encode() + b'", ' + question.body[1:]
        start_s = time.perf_counter()
        outcome = _asked(connection, question, id, body)
        seen.note(question.model, outcome, time.perf_counter() - start_s)
        if outcome in ("busy", "unloaded"):
            time.sleep(0.02)


def _asked(connection: http.client.HTTPConnection, question: ModelInput, id: str, body: bytes) -> str:
    """The outcome of a request: right, wrong, another's, busy, unloaded, refused, or lost."""
    headers = {"content-type": "application/json", "pliant-request": id}
    try:
        connection.request("POST", f"/v2/models/{question.model}/infer", body, headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return "lost"
    if response.status == 503:
        return "busy"
    if response.status == 404:
        return "unloaded"
    if response.status != 200:
        return f"refused {response.status}"
    answer = json.loads(content)
    if answer.get("id") != id:
        return "another's"
    return "right" if question.is_right(answer) else "wrong"


def soak(
    node: Process, upstream: Process, token: str, asked: Sequence[ModelInput], for_s: float
) -> "SoakResults":
    """Run all clients for `for_s` seconds, in whole cycles."""
    seen, stop, found = ClientResults(), threading.Event(), SoakResults()
    clients = [
        threading.Thread(target=ask_until, args=(stop, node.url, asked, i, seen), daemon=True)
        for i in range(N_CLIENTS)
    ]
    start_s = time.monotonic()
    for client in clients:
        client.start()
    cycle_s, is_loaded = min(CYCLE_S, for_s / 4), True
    try:
        for cycle in range(round(for_s / cycle_s)):
            for step in (*steps(node, upstream, token), Step(1.0, "", lambda: None)):
                while (now_s := time.monotonic() - start_s) < (cycle + step.at) * cycle_s:
                    found.resident.append(MemorySample(now_s, cycle, is_loaded, node.resident_bytes))
                    time.sleep(0.2)
                step.act()
                is_loaded = {"model unloaded": False, "model loaded": True}.get(step.name, is_loaded)
                found.events[step.name] += bool(step.name)
    finally:
        stop.set()
        for client in clients:
            client.join(2 * PATIENCE_S)
    found.took_s, found.seen = time.monotonic() - start_s, seen
    found.n_stuck = sum(client.is_alive() for client in clients)
    return found


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The node's memory at a time, and whether the reloaded model was loaded."""

    at_s: float
    cycle: int
    is_loaded: bool
    n_bytes: int


@dataclass(slots=True)
class SoakResults:
    """The results of a soak."""

    seen: ClientResults = field(default_factory=ClientResults)
    events: Counter[str] = field(default_factory=Counter)
    resident: list[MemorySample] = field(default_factory=list)
    took_s: float = 0.0
    n_stuck: int = 0

    def growth(self, cycle_s: float) -> float:
        """The highest peak of a cycle after the first five minutes (or half of the run), relative to the
        first such cycle.
        """
        peaks: dict[int, int] = {}
        for one in self.resident:
            peaks[one.cycle] = max(peaks.get(one.cycle, 0), one.n_bytes)
        settled = int(min(SETTLED_S / cycle_s, len(peaks) / 2))
        later = [peaks[cycle] for cycle in sorted(peaks)[settled:]]
        return max(later) / later[0] - 1.0

    def curve(self) -> list[dict[str, Any]]:
        """Its memory over time, in tenths of the soak, by whether the model was loaded."""
        span_s, rows = self.took_s / N_SPANS, []
        for i in range(N_SPANS):
            within = [one for one in self.resident if i <= one.at_s / span_s < i + 1]
            row: dict[str, Any] = {"minutes": f"{i * span_s / 60:.2g} to {(i + 1) * span_s / 60:.2g}"}
            for state, is_loaded in (("loaded", True), ("unloaded", False)):
                found = [one.n_bytes / 1e6 for one in within if one.is_loaded == is_loaded]
                row[f"{state}: median MB"] = np.median(found) if found else ""
                row[f"{state}: most"] = max(found, default="")
            rows.append(row)
        return rows


def counted(url: str, model: str, outcome: str) -> int:
    """The number of requests of `model` with this outcome, by the node's metrics."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    n = 0.0
    for line in connection.getresponse().read().decode().splitlines():
        is_it = line.startswith("pliant_requests_total{") and f'outcome="{outcome}"' in line
        if is_it and f'model="{model}"' in line:
            n += float(line.rpartition(" ")[2])
    connection.close()
    return int(n)


def main() -> None:
    told = options(__doc__ or "", _more)
    minutes = told.minutes or (0.75 if told.quick else 30.0)
    workload = (
        f"{' and '.join(MODELS)} on one thread, slower by {DILATION}, under {N_CLIENTS} clients for "
        f"{minutes:g} minutes; an upstream of {MODELS[0]}; all on one machine"
    )
    report = Report("serve_soak", workload, told)
    rng, token = np.random.default_rng(0), secrets.token_hex(32)
    asked = [question for model in MODELS for question in questions(model, rng)]
    with TemporaryDirectory() as folder, nodes(Path(folder), token) as (node, upstream):
        found = soak(node, upstream, token, asked, 60.0 * minutes)
        n_counted = counted(node.url, MODELS[0], "ok")
    tell(report, found, n_counted, minutes)
    report.finish()


def tell(report: Report, found: SoakResults, n_counted: int, minutes: float) -> None:
    seen, cycle_s = found.seen, min(CYCLE_S, 15.0 * minutes)
    report.table(
        "what became of requests",
        [
            {"model": model, "outcome": outcome, "requests": n}
            for (model, outcome), n in sorted(seen.outcomes.items())
        ],
    )
    report.table("what happened", [{"event": name, "times": n} for name, n in found.events.items() if name])
    n_right, n_answered = seen.n("right"), seen.n("right", "wrong", "another's")
    n_lost = seen.n("lost") + found.n_stuck
    n_accepted = (
        n_answered
        + n_lost
        + sum(n for (_, outcome), n in seen.outcomes.items() if outcome.startswith("refused"))
    )
    growth = found.growth(cycle_s)
    n_clients = seen.n("right", "wrong", "another's", model=MODELS[0])
    report.table(
        f"{N_CLIENTS} clients for {found.took_s:.0f} s",
        [
            {
                "requests": sum(seen.outcomes.values()),
                "accepted": n_accepted,
                "right": n_right,
                "answers/s": n_right / found.took_s,
                "median ms": 1e3 * float(np.median(seen.seconds)),
                "p99 ms": 1e3 * float(np.quantile(seen.seconds, 0.99)),
                "resident MB": found.resident[-1].n_bytes / 1e6,
                "growth": f"{growth:+.2%}",
                f"{MODELS[0]}: counted by the node": n_counted,
                "by its clients": n_clients,
            }
        ],
    )
    report.table(f"memory of the node, with {COMES_AND_GOES} and without", found.curve())
    share = n_right / max(1, n_accepted)
    is_single = n_counted == n_clients and not seen.n("another's")
    report.claim(
        "serve.soak",
        f"{n_lost} lost, {abs(n_counted - n_clients)} answered twice or uncounted, {share:.4%} of accepted "
        f"right, memory {growth:+.2%}",
        f"30 minutes, {N_CLIENTS} clients: nothing lost, nothing answered twice, {RIGHT:.1%} of accepted "
        f"right, memory within {GROWTH:.0%} after 5 minutes",
        n_lost == 0 and is_single and share >= RIGHT and growth <= GROWTH and minutes >= 30,
        "" if minutes >= 30 else f"{minutes:g} minutes only, so this run does not decide the claim",
    )


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, help="minutes of load, instead of 30 or 0.75")


if __name__ == "__main__":
    main()
