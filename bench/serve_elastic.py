"""[serve.batch] Clients of the shipped classifier: waiting requests for an elastic model run in batches.

sst2 with its weights in memory, within `--memory`, and read during runs; texts of 4 to 64 tokens as JSON; two
cores that nodes and clients share. The peer is the node at the last commit without batches of such requests.
They are loaded in turns.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import numpy as np

from batch import LENGTHS, N_TEXTS, WORDS
from crime_node import PLIANT, started
from paired import paired
from report import Report, options
from service_load import LoadResults, infer_body, load

MODEL = "sst2"
CLIENTS = (1, 16, 64)
BEFORE = "bc99bac9"
NOW, THEN = "requests together", "one after another"
KINDS = {
    "weights in memory": ("--preload", "100MB"),
    "--memory 30MB": ("--memory", "30MB"),
    "--memory 8MB": ("--memory", "8MB"),
    "read while they run": ("--preload", "0"),
}
_SAME = 1e-4
_ROOT = Path(__file__).parent.parent


def main() -> None:
    told = options(__doc__ or "")
    for_s, rounds = (1.0, 2) if told.quick else (2.5, 5)
    workload = f"{MODEL}, {LENGTHS[0]} to {LENGTHS[1]} tokens, {rounds} turns of {for_s:g} s"
    report = Report("serve_elastic", workload, told)
    report.note(
        f"Ratios are relative to the node of {BEFORE}: medians of paired turns with their 95 % interval."
    )
    bodies = list(_bodies())
    with TemporaryDirectory() as name:
        archive = ["git", "archive", BEFORE, "src"]
        found = subprocess.run(archive, cwd=_ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", name], input=found.stdout, check=True)
        for kind, more in list(KINDS.items())[: 1 if told.quick else None]:
            with ExitStack() as stack:
                command = [
                    *PLIANT,
                    "node",
                    MODEL,
                    "--listen",
                    "127.0.0.1:0",
                    "--json",
                    "--settle",
                    "1ms",
                    *more,
                ]
                before = ["env", f"PYTHONPATH={Path(name) / 'src'}", *command]
                urls = {
                    NOW: stack.enter_context(started(command))[0][0],
                    THEN: stack.enter_context(started(before))[0][0],
                }
                _check(urls, bodies)
                counts = CLIENTS if kind == next(iter(KINDS)) else CLIENTS[1:2]
                rows = [row for n in counts for row in _rows(report, kind, urls, bodies, n, for_s, rounds)]
                report.table(kind, rows)
    report.finish()


def _bodies() -> Iterator[bytes]:
    random = np.random.default_rng(0)
    for n in random.permutation(np.linspace(*LENGTHS, N_TEXTS).round().astype(int)):
        text = " ".join(random.choice(WORDS, int(n) - 2))
        yield infer_body({"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]})


def _check(urls: dict[str, str], bodies: list[bytes]) -> None:
    """Check that both nodes give the same answers."""
    for body in bodies[:8]:
        numbers = []
        for url in urls.values():
            asked = Request(f"{url}/v2/models/{MODEL}/infer", body, {"content-type": "application/json"})
            with urlopen(asked) as answer:
                numbers.append(np.array(json.load(answer)["outputs"][0]["data"]))
        if not np.allclose(*numbers, rtol=_SAME, atol=_SAME):
            raise SystemExit(f"the nodes answer differently: {numbers}")


def _rows(
    report: Report,
    kind: str,
    urls: dict[str, str],
    bodies: list[bytes],
    n_clients: int,
    for_s: float,
    rounds: int,
) -> list[dict[str, object]]:
    found: dict[str, list[LoadResults]] = {name: [] for name in urls}
    for url in urls.values():
        load(url, bodies, n_clients, 1.0, MODEL)
    for turn in range(rounds):
        for name in list(urls)[:: 1 if turn % 2 else -1]:
            found[name].append(load(urls[name], bodies, n_clients, for_s, MODEL))
    rates = {name: [answers.rate for answers in turns] for name, turns in found.items()}
    last_s = {name: [a.p99_s for a in turns] for name, turns in found.items()}
    return [
        {
            "node": name,
            "clients": n_clients,
            "answers a second": median(rates[name]),
            "/ one after another": str(paired(rates[name], rates[THEN])),
            "median ms": median(float(np.median(a.seconds)) for a in found[name]) * 1e3,
            "99th percentile ms": median(last_s[name]) * 1e3,
            "not 200": sum(n for a in found[name] for status, n in a.statuses.items() if status != "200"),
        }
        for name in urls
    ]


if __name__ == "__main__":
    main()
