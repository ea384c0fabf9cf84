"""Attention models on nodes: T(n) of the shipped transformer, and the accuracy-time trade when links fail.

[crime.attention] Times of the whole SST-2 model on one thread over lengths 3..256, lengths in random order,
the median of each; a line and a quadratic fitted to them; the quadratic as pieces within 1 %. [crime.trade]
An end node on a slow device, a gateway and a server, as three processes on loopback; the same sentences of
SST-2 dev before and after the links fail (both other nodes are killed), under one deadline.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np

import pliant
from pliant.ir.endpoint import Request
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.fit import least_squares, robust_fit
from pliant.ir.times.piecewise import Quadratic, piecewise
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.plan import NO_TARGET_S
from pliant.run.submodel.elastic_session import ElasticSession
from report import ROOT, Report, options

MODEL = "sst2"
LENGTHS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
LONGEST = 256
DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
DEADLINE_S = 0.12
SLOWER = {"end": 8.0, "gateway": 2.0, "server": 1.0}
FLOOR = 0.88
NODE = [sys.executable, "-c", "from pliant.cli.app import app; app()", "node", MODEL]
_WARM_S = 60.0


def main() -> None:
    arguments = options(__doc__.splitlines()[0])
    n_texts, rounds = (60, 8) if arguments.quick else (872, 40)
    report = Report(
        "crime_attention",
        f"{rounds} rounds of {len(LENGTHS)} lengths; {n_texts} sentences of SST-2 dev, one after the other",
        arguments,
    )
    with ExitStack() as stack:
        session = pliant.open(MODEL, latency=NO_TARGET_S, preload="100MB", threads=1)
        stack.enter_context(session)
        _curve(report, session, rounds)
        _floors(report, session)
    _trade(report, arguments, n_texts)
    report.finish()


def _curve(report: Report, session: ElasticSession, rounds: int) -> None:
    """The whole model at each length, in another order each round."""
    store, rng = session.store, np.random.default_rng(0)
    tokenizer = open_tokenizer(store.path, store.spec)
    texts = {n: " ".join(["good"] * max(0, n - 2)) for n in LENGTHS}
    counts = {n: tokenizer.encode(text).n_tokens for n, text in texts.items()}
    times: dict[int, list[float]] = {count: [] for count in counts.values()}
    for round_ in range(rounds + 2):
        for n in rng.permutation(LENGTHS).tolist():
            reply = session.answer(Request(counts[n], texts[n]))
            if round_ >= 2:
                times[counts[n]].append(reply.seconds)
    lengths = np.array(sorted(times), np.float64)
    medians = np.array([np.median(times[int(n)]) for n in lengths])
    straight, curved = least_squares(lengths, medians, 1), least_squares(lengths, medians, 2)
    fits = {
        "line, least squares": straight,
        "quadratic, least squares": curved,
        "line, of the relative error": robust_fit(lengths, medians, 1)[0],
        "quadratic, of the relative error (what nodes fit)": robust_fit(lengths, medians, 2)[0],
    }
    report.table("fits through the medians", [_fit(name, f, lengths, medians) for name, f in fits.items()])
    sent = fits["quadratic, of the relative error (what nodes fit)"]
    pieces = piecewise(sent, LONGEST)
    off = max(abs(pieces.at(n) / sent(n) - 1.0) for n in range(LONGEST + 1))
    plan = session.trade
    plan.bound = AdaptiveBound()
    predicted = [plan.most_accurate(int(n)).time.median_s for n in lengths]
    rows = [
        {
            "tokens": int(n),
            "measured, ms": t * 1e3,
            "spread (p90 / p10)": float(np.quantile(times[int(n)], 0.9) / np.quantile(times[int(n)], 0.1)),
            "line, ms": straight(n) * 1e3,
            "quadratic, ms": sent(n) * 1e3,
            "sent, ms": pieces.at(int(n)) * 1e3,
            "planned, ms": p * 1e3,
        }
        for n, t, p in zip(lengths.tolist(), medians.tolist(), predicted, strict=True)
    ]
    report.table("seconds against length, whole model, one thread", rows)
    report.claim(
        "crime.attention",
        _r2(sent, lengths, medians),
        "R^2 of the quadratic at least 0.98 and no less than the line's; pieces within 1 % of it",
        _r2(curved, lengths, medians) >= max(0.98, _r2(straight, lengths, medians)) and off <= 0.01 + 1e-9,
        f"line {_r2(straight, lengths, medians):.4f}; largest relative error "
        + f"{_worst(sent, lengths, medians):.3f} against {_worst(straight, lengths, medians):.3f}; "
        + f"{len(pieces.points)} points, off by {off:.4f}",
    )


def _floors(report: Report, session: ElasticSession) -> None:
    """Curves by accuracy floor, from plans alone."""
    best = session.trade.best or 0.0
    floors = [f for f in (0.0, 0.86, 0.88, 0.9, 0.91) if f < best] + [best]
    curves = {f: session.curve(f) for f in floors}
    rows = [
        {"floor": f, "points": len(c.points), **{f"{n} tokens, ms": c.at(n) * 1e3 for n in (8, 24, 64, 128)}}
        for f, c in curves.items()
    ]
    report.table("planned curves by accuracy floor", rows)
    is_rising = all(
        curves[a].at(n) <= curves[b].at(n) * (1 + 1e-9)
        for a, b in pairwise(floors)
        for n in range(LONGEST + 1)
    )
    report.claim("crime.floors", len(floors), "a lower floor is never slower, at any length", is_rising)


def _trade(report: Report, arguments: argparse.Namespace, n_texts: int) -> None:
    path = DATA / "sst2" / "dev.tsv"
    if not path.is_file():
        report.note(f"No SST-2 dev at {path.parent.name}/{path.name}: the trade was not measured.")
        return
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    chosen = [lines[i] for i in np.random.default_rng(1).permutation(len(lines))[:n_texts]]
    labels = {"0": "negative", "1": "positive"}
    with ExitStack() as stack:
        server, killed = _started(stack, "server")
        gateway, also = _started(stack, "gateway", "--upstream", server)
        end, _ = _started(stack, "end", "--upstream", gateway)
        client = stack.enter_context(httpx.Client(base_url=end, timeout=60.0))
        _wait(client)
        found = []
        for what in ("links up", "links down", "links down, floor"):
            if what == "links down":
                for process in (also, killed):
                    process.kill()
                    process.wait()
            terms = {"accuracy_floor": FLOOR} if "floor" in what else {}
            found.append(_asked(client, what, [(s, labels[y]) for s, y in chosen], terms))
    report.table(f"an end node {SLOWER['end']:g} times slower, {DEADLINE_S * 1e3:.0f} ms", found)
    up, down, floor = found
    report.note(
        "The end node uses the most accurate submodel whose bound meets the remaining time; bounds are "
        "adjusted so that 95 % of answers are below them, and most bounds are well before the deadline."
    )
    report.claim(
        "crime.trade",
        float(down["met"]),  # type: ignore[arg-type]
        "links down: at least 95 % of the answers in time, the accuracy within 3 points of what they say",
        float(down["met"]) >= 0.95 and abs(float(down["accuracy"]) - float(down["said"])) <= 0.03,  # type: ignore[arg-type]
        f"up {up['accuracy']:.3f} in {up['median, ms']:.0f} ms, down {down['accuracy']:.3f} in "
        f"{down['median, ms']:.0f} ms, whole here would take {floor['whole here, ms']:.0f} ms",
    )


def _started(stack: ExitStack, name: str, *more: str) -> tuple[str, "subprocess.Popen[str]"]:
    """A node's address and process."""
    words = [*NODE, "--listen", "127.0.0.1:0", "--name", name, "--threads", "1", "--json", *more]
    words += ["--settle", "1ms"]
    words += ["--latency", f"{DEADLINE_S}s", "--best-effort", "--dilate", f"{SLOWER[name]:g}"]
    process = stack.enter_context(_process(words))
    assert process.stdout is not None
    return json.loads(process.stdout.readline())["url"], process


@contextmanager
def _process(words: list[str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait(client: httpx.Client) -> None:
    """Wait until the end node can reach its upstream."""
    end_s = time.monotonic() + _WARM_S
    while time.monotonic() < end_s:
        if client.get("/v2/pliant/route", params={"length": 24}).json()["target"] not in (None, "local"):
            return
        time.sleep(0.05)
    raise SystemExit("the end node never found its gateway.")


def _asked(
    client: httpx.Client, what: str, texts: list[tuple[str, str]], terms: dict[str, float]
) -> dict[str, object]:
    """Send one sentence after the other; returns the answers, their times and the accuracy that they
    state.
    """
    seconds, right, said, met = [], [], [], []
    for text, label in texts:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
        start_s = time.perf_counter()
        reply = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor], "parameters": terms})
        seconds.append(time.perf_counter() - start_s)
        answer = reply.raise_for_status().json()
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        right.append(outputs["label"][0] == label)
        said.append(answer["parameters"]["accuracy"])
        met.append(answer["parameters"]["met"])
    here = client.get("/v2/pliant/route", params={"length": 24}).json()["candidates"][0]
    return {
        "what": what,
        "n": len(texts),
        "accuracy": float(np.mean(right)),
        "said": float(np.mean(said)),
        "least said": float(min(said)),
        "met": float(np.mean(met)),
        "median, ms": float(np.median(seconds)) * 1e3,
        "p95, ms": float(np.quantile(seconds, 0.95)) * 1e3,
        "longest, ms": max(seconds) * 1e3,
        "whole here, ms": (here["answer_s"] or 0.0) * 1e3,
    }


def _fit(name: str, fit: Quadratic, n: np.ndarray, t: np.ndarray) -> dict[str, object]:
    return {
        "fit": name,
        "constant, ms": fit.constant_s * 1e3,
        "linear, us": fit.linear_s * 1e6,
        "square, ns": fit.square_s * 1e9,
        "R^2": _r2(fit, n, t),
        "largest relative error": _worst(fit, n, t),
    }


def _r2(fit: Quadratic, n: np.ndarray, t: np.ndarray) -> float:
    left = t - np.array([fit(x) for x in n])
    return float(1.0 - (left @ left) / ((t - t.mean()) @ (t - t.mean())))


def _worst(fit: Quadratic, n: np.ndarray, t: np.ndarray) -> float:
    return float(max(abs(fit(x) / y - 1.0) for x, y in zip(n, t, strict=True)))


if __name__ == "__main__":
    main()
