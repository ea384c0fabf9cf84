"""[serve.batch] Many clients of a sentence encoder from ONNX: waiting requests run in batches.

MiniLM-L6 with mean pooling, texts of 8 to 64 tokens as JSON, float32 on every side, two cores that servers
and clients share. The node's peers are onnxruntime in a Starlette app with a pool of threads
(serve_batch_peer.py), and the KServe SDK's model server around onnxruntime (serve_batch_kserve.py), in a
separate environment that is made once in the folder `--peers`, from the package index. They are loaded in
turns, as is a node with one compute worker, whose batches run one at a time. In addition, a single client
measures a node, and the same node at the commit before batching.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime

from crime_node import PLIANT, Connection, started
from fma_peak import fma_peak
from paired import paired
from report import Report, options
from service_load import LoadResults, infer_inputs, load
from text_models import MINILM, export_pooled

CLIENTS = (16, 64)
LENGTHS, N_TEXTS = (8, 64), 64
GAIN, MOST_ADDED = 1.6, 1.05
TOLERANCE = 1e-5
"""The tolerance relative to the largest value of an answer: float32 sums in another order."""
BEFORE = "cd6c4792"
"""The last commit without batching."""
MODEL, KSERVE = "minilm", "kserve==0.21.0"
NODE, ONE = "pliant node", "pliant node, one compute worker"
APP, SDK = "onnxruntime, Starlette", "onnxruntime, KServe SDK"
PEERS = Path.home() / ".cache" / "pliant-bench" / "kserve"
HERE = Path(__file__).parent
_STARTS_S = 60.0


@dataclass(frozen=True, slots=True)
class Texts:
    """Requests in JSON, and onnxruntime's answer to each."""

    bodies: list[bytes]
    wanted: list[np.ndarray]
    work: float
    """The floating-point operations of the products of one answer, on average."""


def main() -> None:
    told = options(__doc__ or "", _peers_option)
    for_s, rounds = (1.5, 2) if told.quick else (4.0, 7)
    workload = f"{MINILM.name} from ONNX, {LENGTHS[0]} to {LENGTHS[1]} tokens, {rounds} turns of {for_s:g} s"
    report = Report("serve_batch", workload, told)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = export_pooled(MINILM, folder / f"{MODEL}.onnx")
        texts = _texts(file)
        with ExitStack() as stack:
            urls = {
                NODE: stack.enter_context(started(_node(file)))[0][0],
                ONE: stack.enter_context(started([*_node(file), "--compute-workers", "1"]))[0][0],
                APP: stack.enter_context(
                    started([sys.executable, str(HERE / "serve_batch_peer.py"), str(file)])
                )[0][0],
                SDK: stack.enter_context(_kserve(told.peers, file)),
            }
            _check(report, urls, texts)
            peak = fma_peak()
            rows = [_row(urls, texts, n, for_s, rounds, report, peak) for n in CLIENTS]
            report.table("many clients", [row for group in rows for row in group])
            report.note(
                f"All cores together do {peak / 1e9:.0f} GFLOP/s of fused multiply-adds at most, measured in "
                "registers; the column says which part of this the products of the answers are. Clients "
                "and HTTP take the same cores."
            )
            _alone(report, file, urls[NODE], texts, stack, 100 if told.quick else 600)
    report.finish()


def _peers_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=Path, default=PEERS, help="where the KServe SDK is installed")


def _texts(file: Path) -> Texts:
    rng = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, N_TEXTS).tolist()
    found = Texts([], [], sum(map(_work, lengths)) / N_TEXTS)
    for n in lengths:
        ids = rng.integers(1000, MINILM.vocabulary, (1, n), dtype=np.int64)
        feeds = {"ids": ids, "mask": np.ones_like(ids)}
        found.bodies.append(infer_inputs(feeds))
        found.wanted.append(session.run(None, feeds)[0])
    return found


def _work(n: int) -> float:
    """The operations of all products of a text of `n` tokens: 12 d^2 weights a layer, and attention's two."""
    width = MINILM.hidden
    return 2.0 * MINILM.layers * n * (12 * width**2 + 2 * n * width)


def _node(file: Path) -> list[str]:
    return [*PLIANT, "node", str(file), "--listen", "127.0.0.1:0", "--json", "--settle", "1ms"]


@contextmanager
def _kserve(folder: Path, file: Path) -> Iterator[str]:
    """The address of the SDK's server, from its environment, which is made if it is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [KSERVE, f"onnxruntime=={onnxruntime.__version__}"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(python),
        str(HERE / "serve_batch_kserve.py"),
        "--file",
        str(file),
        "--http_port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url, start_s = f"http://127.0.0.1:{port}", time.monotonic()
        while not _is_ready(url):
            if process.poll() is not None or time.monotonic() - start_s > _STARTS_S:
                raise SystemExit(f"the KServe SDK's server does not start: {' '.join(command)}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(_STARTS_S)


def _is_ready(url: str) -> bool:
    with suppress(OSError), urlopen(f"{url}/v2/health/ready", timeout=1) as found:
        return bool(found.status == 200)
    return False


def _check(report: Report, urls: dict[str, str], texts: Texts) -> None:
    """Check that answers, to a single client and under 16 clients, equal those of onnxruntime in this
    process.
    """
    rows = []
    for name, url in urls.items():
        alone = [_answer(url, body) for body in texts.bodies]
        load(url, texts.bodies, CLIENTS[0], 0.5, MODEL)
        together = _together(url, texts.bodies)
        rows.append(
            {
                "server": name,
                "alone": max(map(_difference, texts.wanted, alone)),
                "64 at once": max(map(_difference, texts.wanted, together)),
            }
        )
    report.table("largest difference from onnxruntime, as a part of the largest number", rows)
    if max(float(row["64 at once"]) for row in rows) > TOLERANCE:
        raise SystemExit(f"answers are not those of onnxruntime: {rows}")


def _answer(url: str, body: bytes) -> np.ndarray:
    asked = Request(f"{url}/v2/models/{MODEL}/infer", body, {"content-type": "application/json"})
    with urlopen(asked) as found:
        output = json.load(found)["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def _together(url: str, bodies: Sequence[bytes]) -> list[np.ndarray]:
    with ThreadPoolExecutor(len(bodies)) as clients:
        return list(clients.map(lambda body: _answer(url, body), bodies))


def _difference(wanted: np.ndarray, found: np.ndarray) -> float:
    return float(np.abs(wanted - found).max() / np.abs(wanted).max())


def _row(
    urls: dict[str, str],
    texts: Texts,
    n_clients: int,
    for_s: float,
    rounds: int,
    report: Report,
    peak: float,
) -> list[dict[str, object]]:
    found: dict[str, list[LoadResults]] = {name: [] for name in urls}
    for url in urls.values():
        load(url, texts.bodies, n_clients, 1.0, MODEL)
    for turn in range(rounds):
        for name in list(urls)[:: 1 if turn % 2 else -1]:
            found[name].append(load(urls[name], texts.bodies, n_clients, for_s, MODEL))
    rates = {name: [answers.rate for answers in turns] for name, turns in found.items()}
    last_s = {name: [answers.p99_s for answers in turns] for name, turns in found.items()}
    refused = sum(
        n for turns in found.values() for a in turns for status, n in a.statuses.items() if status != "200"
    )
    for peer in (APP, SDK):
        gain, tail = paired(rates[NODE], rates[peer]), paired(last_s[NODE], last_s[peer])
        report.claim(
            "serve.batch",
            gain.value,
            f"at least {GAIN:g} times the answers a second of {peer}, at a lower 99th percentile",
            gain.value >= GAIN and tail.value < 1.0 and not refused,
            f"{n_clients} clients; {gain}; 99th percentile {tail} of its",
        )
    return [
        {
            "server": name,
            "clients": n_clients,
            "answers a second": median(rates[name]),
            "of the peak": median(rates[name]) * texts.work / peak,
            "pliant node / it": str(paired(rates[NODE], rates[name])),
            "median ms": median(float(np.median(a.seconds)) for a in found[name]) * 1e3,
            "99th percentile ms": median(last_s[name]) * 1e3,
            "not 200": sum(n for a in found[name] for status, n in a.statuses.items() if status != "200"),
        }
        for name in urls
    ]


def _alone(report: Report, file: Path, url: str, texts: Texts, stack: ExitStack, n: int) -> None:
    """A single client: no request waits, so nothing is batched, and the extra time is the overhead of
    batching.
    """
    before = file.parent / "before"
    before.mkdir()
    archive = subprocess.run(
        ["git", "archive", BEFORE, "src"], cwd=HERE.parent, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(before)], input=archive.stdout, check=True)
    command = ["env", f"PYTHONPATH={before / 'src'}", *_node(file)]
    ways = {"before": stack.enter_context(started(command))[0][0], "now": url}
    connections = {name: Connection(way, MODEL) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(n + N_TEXTS):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            seconds[name].append(connections[name].seconds(texts.bodies[turn % N_TEXTS]))
    kept = {name: s[N_TEXTS:] for name, s in seconds.items()}
    ratio = paired(kept["now"], kept["before"])
    report.table("one client (ms)", [{"node": name, "median": median(s) * 1e3} for name, s in kept.items()])
    report.claim(
        "serve.batch",
        ratio.value,
        f"one client waits at most {MOST_ADDED:g} times as long as without batches",
        ratio.value <= MOST_ADDED,
        f"the median of {n} pairs of requests; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}",
    )


if __name__ == "__main__":
    main()
