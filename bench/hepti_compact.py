"""Savings and costs of narrower activations in transfers: fp16 and int8 against fp32; and Gloo against
ZeroMQ.

Times on BERT-Large; accuracy and times on SST-2's dev set with the classifier that ships with pliant.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hepti_links import Engine, measured
from hepti_modes import split_of
from hepti_rig import PRIMARY, SECONDARY, open_rig, pair, random_model
from paired import paired
from pliant.api.open_encoder import open_encoder
from pliant.api.resolve import resolve
from pliant.cluster.net.activation_coding import Coding
from pliant.elastic.evaluate.intervals import paired_difference
from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.settings import cache_folder
from report import ROOT

CODINGS: tuple[Coding, ...] = ("fp32", "fp16", "int8")
MBITS = (940, 240)
WEAK_MBIT = 20
"""The link for the small classifier, whose exchanges of 20 KB take too little time on a faster link."""
ENGINES: tuple[Engine, ...] = ("zmq", "gloo")
_TIMED: tuple[Mode, ...] = ("ws", "1d")
_DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
_SENTENCES = _DATA / "sst2" / "dev.tsv"


def measure(quick: bool) -> dict[str, Any]:
    """Seconds and errors on BERT-Large, and both engines."""
    with TemporaryDirectory() as name:
        return _large(Path(name), 2 if quick else 4, 2 if quick else 7)


def measure_answers(quick: bool) -> list[dict[str, object]]:
    """Answers and seconds of the shipped model; empty if the sentences are not available."""
    with TemporaryDirectory() as name:
        return _answers(Path(name), 24 if quick else 872)


def _large(folder: Path, n_layers: int, rounds: int) -> dict[str, Any]:
    said, source = random_model("bert-large", n_layers, folder)
    rows, engines = [], []
    with open_rig(pair(MBITS[0]), said, source, folder / "bed") as rig:
        for mbit in MBITS:
            rig.shape(mbit)
            engines += [_engine(engine, mbit, measured(rig.network, folder, engine)[1]) for engine in ENGINES]
            for mode in _TIMED:
                partition = split_of(mode, source.spec, 2, 32)
                exact = rig.run(partition).answers[0]
                errors = {c: float(np.abs(rig.run(partition, c).answers[0] - exact).max()) for c in CODINGS}
                seconds: dict[str, list[float]] = {coding: [] for coding in CODINGS}
                sent: dict[str, int] = {}
                for _ in range(rounds):
                    for coding in CODINGS:
                        before = _moved(rig.leader.comm.counters)
                        seconds[coding].append(rig.run(partition, coding).seconds)
                        sent[coding] = _moved(rig.leader.comm.counters) - before
                for coding in CODINGS:
                    ratios = [a / b for a, b in zip(seconds[coding], seconds["fp32"], strict=True)]
                    rows.append(
                        {
                            "mode": mode,
                            "Mbit/s": mbit,
                            "exchange": coding,
                            "median [ms]": median(seconds[coding]) * 1e3,
                            "beside fp32": median(ratios),
                            "moved [MB]": sent[coding] / 1e6,
                            "largest error": errors[coding],
                            "largest answer": float(np.abs(exact).max()),
                        }
                    )
    return {"times": rows, "engines": engines}


def _moved(counters: Mapping[str, Any]) -> int:
    return sum(t.sent_bytes + t.received_bytes for t in counters.values())


def _engine(engine: str, mbit: int, ways: list[list[Any]]) -> dict[str, object]:
    rates = {src: 8 * Bps / 1e6 for src, _, _, Bps in ways}
    return {
        "engine": "ZeroMQ, encrypted" if engine == "zmq" else "Gloo, in the clear",
        "link [Mbit/s]": mbit,
        "latency [ms]": ways[0][2] * 1e3,
        "to the secondary [Mbit/s]": rates[PRIMARY],
        "to the primary [Mbit/s]": rates[SECONDARY],
    }


def _answers(folder: Path, n: int) -> list[dict[str, object]]:
    """The bundled classifier, split in halves, on sentences of SST-2's dev set, if available.

    Sentences of one length follow each other: they share a plan. Times are of interleaved runs on a slow
    link.
    """
    if not _SENTENCES.exists():
        return []
    lines = [line.split("\t") for line in _SENTENCES.read_text().splitlines()[1:]][:n]
    store = str(resolve("sst2").path)
    source = open_encoder(store, cache_folder())
    feeds = sorted((source.prepare(source.read(text)).rows, i) for i, (text, _) in enumerate(lines))
    logits: dict[str, list[np.ndarray]] = {coding: [] for coding in CODINGS}
    seconds: dict[str, list[float]] = {coding: [] for coding in CODINGS}
    with open_rig(pair(WEAK_MBIT, 1.0), store, source, folder / "sst2", tokens=16) as rig:
        known = 0
        for number, (rows, i) in enumerate(feeds):
            rig.feeds = source.prepare(source.read(lines[i][0])).feeds
            partition = _halves(source.spec, rows)
            if rows != known:
                known = rows
                rig.release()
                for coding in CODINGS:
                    rig.run(partition, coding)
            for coding in CODINGS if number % 2 else CODINGS[::-1]:
                led = rig.run(partition, coding)
                logits[coding].append(led.answers[0].ravel())
                seconds[coding].append(led.seconds)
    labels = np.array([int(lines[i][1]) for _, i in feeds])
    return [_answered(coding, logits, seconds, labels) for coding in CODINGS]


def _answered(
    coding: Coding,
    logits: Mapping[str, list[np.ndarray]],
    seconds: Mapping[str, list[float]],
    labels: np.ndarray,
) -> dict[str, object]:
    exact, found = np.array(logits["fp32"]), np.array(logits[coding])
    right, right_exact = (one.argmax(1) == labels for one in (found, exact))
    return {
        "exchange": coding,
        "sentences": len(labels),
        "correct [%]": 100 * float(right.mean()),
        "beside fp32, points [95 %]": str(paired_difference(right, right_exact)),
        "same answer as fp32 [%]": 100 * float((found.argmax(1) == exact.argmax(1)).mean()),
        "largest change of a logit": float(np.abs(found - exact).max()),
        f"median [ms] at {WEAK_MBIT} Mbit/s": median(seconds[coding]) * 1e3,
        "time beside fp32 [95 %]": str(paired(seconds[coding], seconds["fp32"])),
    }


def _halves(spec: EncoderSpec, rows: int) -> Partition:
    heads = spec.n_heads // 2
    shares = (
        Share(PRIMARY, heads, rows // 2),
        Share(SECONDARY, spec.n_heads - heads, rows - rows // 2),
    )
    return Partition("ws", PRIMARY, shares, rows)
