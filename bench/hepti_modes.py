"""Figure 6: serial execution and the three modes on two devices, interleaved, with bounds and predictions.

The partition is the paper's for BERT-Large (87.5 % offloaded at 940 Mbit/s, 93.7 % at 470). For MobileBERT,
whose four heads do not allow this, it is the fastest by WS's prediction that gives rows to both devices. It
is the same in all three modes, as in the paper; the planner's choice is also shown.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hepti_anatomy import Anatomy, anatomy, bound, computes_alone, computes_together, middle
from hepti_rig import (
    PAPER_SLOWER,
    PRIMARY,
    SECONDARY,
    SLOWER,
    TOKENS,
    Rig,
    alone,
    open_rig,
    pair,
    random_model,
)
from pliant.cluster.lead.predict import predict
from pliant.cluster.watch.adapt import Topology
from pliant.ir.capability import Capability, Links
from pliant.ir.partition import DeviceGrid, Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.initial_plans import all_plans
from pliant.plan.partition.partition_cost import seconds as seconds_of
from pliant.plan.partition.partitioner import choose_partition
from pliant.plan.partition.problem import PartitionProblem, pose

MODELS = {"BERT-Large": "bert-large", "MobileBERT": "mobilebert"}
MBITS = (940, 470)
SERIAL, SECOND = "serial", "secondary alone"
MODES: tuple[Mode, ...] = ("ws", "1d", "2d")
_PAPER_HEADS = {940: 2, 470: 1}
_SWEEP_MBITS = (940, 470, 240)


def layers_of(model: str, quick: bool) -> int:
    if model == "BERT-Large":
        return 2 if quick else 4
    return 4 if quick else 12


def split_of(mode: Mode, spec: EncoderSpec, heads: int, rows: int, tokens: int = TOKENS) -> Partition:
    """The primary takes `heads` and `rows`, and a share of the feed forward's columns in proportion to the
    rows.
    """
    columns = 0 if mode == "ws" else round(spec.ffn * rows / tokens)
    rest = 0 if mode == "ws" else spec.ffn - columns
    shares = (
        Share(PRIMARY, heads, rows, columns),
        Share(SECONDARY, spec.n_heads - heads, tokens - rows, rest),
    )
    if mode != "2d":
        return Partition(mode, PRIMARY, shares, tokens)
    outputs = round(spec.inner * rows / tokens)
    grid = DeviceGrid(((PRIMARY, SECONDARY),), (outputs, spec.inner - outputs), (spec.inner,))
    return Partition(mode, PRIMARY, shares, tokens, grid)


def measure(model: str, quick: bool) -> dict[str, Any]:
    """Seconds of every mode at every bandwidth, the parts of layers, and the sweep of predictions.

    The figure is measured with our ratio of the devices and the paper's, the sweep with ours.
    """
    rounds = 2 if quick else 5
    with TemporaryDirectory() as name:
        folder = Path(name)
        said, source = random_model(MODELS[model], layers_of(model, quick), folder)
        found: dict[str, Any] = {"n_layers": source.spec.n_layers, "figure": [], "sweep": []}
        for slower in (SLOWER, PAPER_SLOWER):
            with open_rig(pair(MBITS[0], slower), said, source, folder / f"bed-{slower:g}") as rig:
                devices = rig.devices()
                computed: dict[Partition, dict[str, float]] = {}
                for mbit in MBITS:
                    rig.shape(mbit)
                    links = rig.links()
                    one = _figure(rig, model, mbit, devices, links, rounds, computed)
                    found["figure"].append({"slower": slower} | one)
                    rig.release()
                for mbit in _SWEEP_MBITS[:: 2 if quick else 1] if slower == SLOWER else ():
                    rig.shape(mbit)
                    links = rig.links()
                    found["sweep"] += _sweep(rig, mbit, devices, links, 1 if quick else 2)
                    rig.release()
    return found


def _best_split(p: PartitionProblem) -> tuple[int, int]:
    """The primary's heads and rows, where both have rows."""
    plans = all_plans(p, "ws")
    times = np.where((plans.rows > 0).all(1), seconds_of(p, plans), np.inf)
    best = int(np.argmin(times))
    return int(plans.heads[best, p.primary]), int(plans.rows[best, p.primary])


def _figure(
    rig: Rig,
    model: str,
    mbit: int,
    devices: Mapping[str, Capability],
    links: Links,
    rounds: int,
    known: dict[Partition, dict[str, float]],
) -> dict[str, Any]:
    spec = rig.source.spec
    chosen = choose_partition(spec, TOKENS, devices, links, PRIMARY).partition
    mine = chosen.share(PRIMARY)
    if model == "BERT-Large":
        heads, rows = _PAPER_HEADS[mbit], TOKENS * _PAPER_HEADS[mbit] // 16
    else:
        heads, rows = _best_split(pose(spec, TOKENS, devices, links, PRIMARY))
    plans = {SERIAL: alone(spec, TOKENS), SECOND: alone(spec, TOKENS, SECONDARY)}
    plans |= {mode: split_of(mode, spec, heads, rows) for mode in MODES}
    for partition in plans.values():
        rig.run(partition)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    parts: dict[str, list[Anatomy]] = {name: [] for name in plans}
    for number in range(rounds):
        for name in list(plans)[:: 1 if number % 2 == 0 else -1]:
            run = rig.run(plans[name])
            seconds[name].append(run.seconds)
            parts[name].append(anatomy(run.program, run.spans))
    slower = {name: device.dilation.compute for name, device in devices.items()}
    modes = {}
    for name, partition in plans.items():
        solved = predict(spec, partition, Topology(devices, links))
        if partition not in known:
            known[partition] = computes_alone(rig.source, partition, slower, 2)
        together = computes_together(rig.source, partition, slower, 2) if name in MODES else known[partition]
        least = bound(known[partition], spec, partition, links)
        taken, planned = middle(parts[name]), anatomy(solved.program, solved.spans)
        modes[name] = {
            "seconds": seconds[name],
            "measured": _row(taken),
            "predicted": _row(planned),
            "bound": {"layer": least.layer, "compute": least.compute, "exchange": least.exchange},
            "together": max(together.values()),
        }
    share = {"chosen": [chosen.mode, mine.heads, mine.rows], "used": [heads, rows]}
    ways = {f"{a} to {b}": links.link(a, b) for a, b in ((PRIMARY, SECONDARY), (SECONDARY, PRIMARY))}
    said = {way: [link.latency_s, link.bandwidth_Bps] for way, link in ways.items()}
    return {"mbit": mbit, "links": said, "modes": modes, "offloaded": 1 - rows / TOKENS, "share": share}


def _sweep(
    rig: Rig, mbit: int, devices: Mapping[str, Capability], links: Links, runs: int
) -> list[dict[str, Any]]:
    """Layers and the input's transfer to the secondary, predicted and measured, over modes and splits."""
    spec = rig.source.spec
    fractions = (1 / 8, 1 / 4, 1 / 2) if spec.n_heads == 16 else (1 / 4, 1 / 2)
    rows = []
    for fraction in fractions:
        for mode in MODES:
            partition = split_of(mode, spec, round(spec.n_heads * fraction), round(TOKENS * fraction))
            solved = predict(spec, partition, Topology(devices, links))
            said = anatomy(solved.program, solved.spans)
            rig.run(partition)
            later = predict(spec, partition, rig.seen(solved))
            again = anatomy(later.program, later.spans)
            found = []
            for _ in range(runs):
                run = rig.run(partition)
                found.append(anatomy(run.program, run.spans))
            took_s = median(one.layers + one.opening for one in found)
            rows.append(
                {
                    "mode": mode,
                    "Mbit/s": mbit,
                    "share": fraction,
                    "predicted_s": said.layers + said.opening,
                    "after_a_run_s": again.layers + again.opening,
                    "measured_s": took_s,
                }
            )
    return rows


def _row(one: Anatomy) -> dict[str, float]:
    return {"layer": one.layer, "compute": one.compute, "rest": one.rest}
