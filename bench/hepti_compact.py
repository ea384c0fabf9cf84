"""What narrower activations on the wire save and cost: fp16 and int8 beside fp32; and Gloo beside ZeroMQ."""

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
from pliant.api import model_directory
from pliant.cluster.coding import Coding
from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder_spec import EncoderSpec
from pliant.store.encoder import open_encoder
from report import ROOT

CODINGS: tuple[Coding, ...] = ("fp32", "fp16", "int8")
MBITS = (940, 240)
ENGINES: tuple[Engine, ...] = ("zmq", "gloo")
_TIMED: tuple[Mode, ...] = ("ws", "1d")
_DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
_SENTENCES = _DATA / "sst2" / "dev.tsv"


def measure(quick: bool) -> dict[str, Any]:
    """Seconds and errors on BERT-Large, answers on the model that pliant brings along, and both engines."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = _large(folder, 2 if quick else 4, 2 if quick else 7)
        return found | {"answers": _answers(folder, 12 if quick else 100)}


def _large(folder: Path, n_layers: int, rounds: int) -> dict[str, Any]:
    said, source = random_model("bert-large", n_layers, folder)
    rows, engines = [], []
    with open_rig(pair(MBITS[0]), said, source, folder / "bed") as rig:
        for mbit in MBITS:
            rig.shape(mbit)
            engines += [_engine(engine, mbit, measured(rig.network, folder, engine)[1]) for engine in ENGINES]
            for mode in _TIMED:
                partition = split_of(mode, source.spec, 2, 32)
                exact = rig.run(partition).answer.copy()
                errors = {c: float(np.abs(rig.run(partition, c).answer - exact).max()) for c in CODINGS}
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
        "round trip [ms]": ways[0][2] * 1e3,
        "to the secondary [Mbit/s]": rates[PRIMARY],
        "to the primary [Mbit/s]": rates[SECONDARY],
    }


def _answers(folder: Path, n: int) -> list[dict[str, object]]:
    """The bundled classifier, split in halves, on sentences of SST-2's dev set where that is at hand."""
    if not _SENTENCES.exists():
        return []
    pairs = [line.split("\t") for line in _SENTENCES.read_text().splitlines()[1 : n + 1]]
    store = str(model_directory("sst2"))
    source = open_encoder(store)
    found: dict[str, list[np.ndarray]] = {coding: [] for coding in CODINGS}
    with open_rig(pair(940, 1.0), store, source, folder / "sst2", tokens=16) as rig:
        for text, _ in pairs:
            prepared = source.prepare(source.read(text))
            rig.feeds = prepared.feeds
            partition = _halves(source.spec, prepared.rows)
            for coding in CODINGS:
                found[coding].append(rig.run(partition, coding).answer.ravel().copy())
    labels = np.array([int(label) for _, label in pairs])
    exact = np.array(found["fp32"])
    rows = []
    for coding in CODINGS:
        logits = np.array(found[coding])
        rows.append(
            {
                "exchange": coding,
                "sentences": len(pairs),
                "correct [%]": 100 * float((logits.argmax(1) == labels).mean()),
                "same answer as fp32 [%]": 100 * float((logits.argmax(1) == exact.argmax(1)).mean()),
                "largest change of a logit": float(np.abs(logits - exact).max()),
            }
        )
    return rows


def _halves(spec: EncoderSpec, rows: int) -> Partition:
    heads = spec.n_heads // 2
    shares = (
        Share(PRIMARY, heads, rows // 2),
        Share(SECONDARY, spec.n_heads - heads, rows - rows // 2),
    )
    return Partition("ws", PRIMARY, shares, rows)
