"""`hepti.adapt`: Figure 7. Bandwidth falls, then the secondary's memory; Hepti continues, CoEdge stops.

Two devices at about the paper's speed: 333 ms per layer of BERT-Large on the primary (8 s for 24), 2.9 times
less on the secondary; and the same with a primary only 1.5 times slower than the secondary, where a split
saves more. Both systems run the model repeatedly while conditions change in the middle of a run: first the
link, then the secondary's memory limit. Hepti runs in mode auto. Its new plan is compared with an informed
plan: that of a cluster opened and measured after the change. Both then run interleaved.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, Literal, final

import msgspec
import numpy as np

from hepti_beds import Bed, DeviceSpec, open_bed, rate
from hepti_rig import PAPER_SLOWER, PRIMARY, SECONDARY, alone, open_rig, random_model
from pliant.api.open_cluster import PORT, Cluster
from pliant.api.open_encoder import open_encoder
from pliant.cluster.lead.join_spans import segment_ends
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition
from pliant.plan.split.stage_graphs import weight_bytes

MODEL, TOKENS = "bert-large", 256
SLOWER, NEARER = 1.4, 1.5
"""The secondary's dilation, and the primary's relative to it in the case where a split pays (at best 40
%).
"""
WIDE, NARROW, POOR = "940Mbit", "250Mbit", "80Mbit"
AMPLE, SHORT = 1.0, 1.0 / 1.63
"""Memory limits relative to the need of the weight-stationary mode: in the paper it needs 1.63 GB, and 1 GB
is left.
"""

System = Literal["hepti", "coedge"]


@dataclass(frozen=True, slots=True)
class Change:
    """The conditions from a segment of the evaluation on."""

    name: str
    link: str
    memory: float


SEGMENTS = (
    Change("1: 940 Mbit/s, memory for WS", WIDE, AMPLE),
    Change("2: 250 Mbit/s, memory for WS", NARROW, AMPLE),
    Change("3: 250 Mbit/s, too little memory for WS", NARROW, SHORT),
)


def measure(quick: bool, ratio: float = PAPER_SLOWER) -> dict[str, Any]:
    """Layer times of both systems over the segments, and the informed plans."""
    with opened_bed(6 if quick else 24, ratio) as world:
        hepti = _series(world, "hepti", world.bed.session, 2 if quick else 3)
        world.bed.cluster.close()
        knew = []
        for change in SEGMENTS:
            world.become(change)
            with world.opened(adapt=False) as session:
                knew.append(session.plan_at(TOKENS).partition)
        world.become(SEGMENTS[0])
        with world.opened(shares="coedge", adapt=False) as session:
            coedge = _series(world, "coedge", session, 2 if quick else 3)
        return {
            "ratio": ratio,
            "what": f"{world.n_layers} layers of BERT-Large, {TOKENS} tokens, primary {ratio:g} times slower",
            "hepti": hepti,
            "coedge": coedge,
            "knew": [msgspec.to_builtins(one) for one in knew],
            "all weights": world.whole,
            "worst difference": world.worst,
        }


def measure_plans(found: Mapping[str, Any], quick: bool) -> list[dict[str, Any]]:
    """Each segment's last plans, interleaved, on fewer layers: a layer's median milliseconds, run by run."""
    rows = []
    with TemporaryDirectory() as name:
        said, source = random_model(MODEL, 4 if quick else 8, Path(name))
        with open_rig(_specs(found["ratio"]), said, source, Path(name) / "rig", TOKENS) as rig:
            for i, change in enumerate(SEGMENTS):
                for device in rig.network:
                    rig.network.set_bandwidth(device.name, rate(change.link))
                parts = {"hepti": found["hepti"][i]["partition"], "knew": found["knew"][i]}
                if not found["coedge"][i]["stopped"]:
                    parts["coedge"] = found["coedge"][i]["partition"]
                plans = {who: msgspec.convert(one, Partition) for who, one in parts.items()}
                row: dict[str, Any] = {who: [] for who in plans}
                for round_ in range(2 if quick else 8):
                    done: dict[Partition, float] = {}
                    for who in list(plans) if round_ % 2 else list(plans)[::-1]:
                        plan = plans[who]
                        if plan not in done:
                            done[plan] = 1e3 * median(layer_seconds(rig.run(plan)))
                        row[who] += [done[plan]] if round_ else []
                rows.append(row)
                rig.release()
    return rows


def measure_poor(quick: bool) -> list[dict[str, Any]]:
    """A link below 100 Mbit/s: 1D, and Hepti's choice, against local inference, interleaved."""
    rows = []
    with opened_bed(6 if quick else 12) as world:
        world.bed.cluster.close()
        for name, mode, at_first in (
            ("1D-tiled, planned at 250 Mbit/s", "1d", NARROW),
            ("chosen", "auto", POOR),
        ):
            world.become(Change("before", at_first, SHORT))
            with world.opened(mode=mode, adapt=False) as session:
                for is_alone in (False, True):
                    world.run(session, is_alone=is_alone)
                world.become(Change("poor", POOR, SHORT))
                pairs = [
                    (world.run(session), world.run(session, is_alone=True)) for _ in range(1 if quick else 4)
                ]
            ratio = median(split.run_s / local.run_s for split, local in pairs)
            rows.append(
                {
                    "plan": name,
                    "partition": describe(pairs[-1][0].partitions[-1]),
                    "split [ms]": median(split.run_s for split, _ in pairs) * 1e3,
                    "local [ms]": median(local.run_s for _, local in pairs) * 1e3,
                    "above local [%]": 100 * (ratio - 1),
                    "paper, 1D above local [%]": 1.9 if mode == "1d" else "-",
                }
            )
    return rows


@final
class World:
    """Two devices and their primary, and the current link and memory of the secondary."""

    def __init__(self, bed: Bed, memory: Path, whole: int) -> None:
        self.bed, self.whole, self._memory = bed, whole, memory
        self._feeds = bed.session.sample(TOKENS)
        self._source = open_encoder(bed.model, bed.folder)
        self.n_layers = self._source.spec.n_layers
        self._expected = bed.session.alone(self._feeds).output
        self.last_s = 0.0
        self.worst = 0.0

    def become(self, change: Change) -> None:
        """Change the link and the memory."""
        for name in (PRIMARY, SECONDARY):
            self.bed.network.set_bandwidth(name, rate(change.link))
        new = self._memory.with_suffix(".new")
        new.write_text(f"{int(change.memory * self.whole)}")
        new.replace(self._memory)

    def run(self, session: ClusterSession, *, is_alone: bool = False) -> ClusterDetails:
        """Run one inference, and record the error of its answer."""
        reply = session.alone(self._feeds) if is_alone else session(self._feeds)
        self.last_s = reply.details.run_s
        self.worst = max(self.worst, float(np.abs(reply.output - self._expected).max()))
        return reply.details

    def excess(self, partition: Partition) -> str:
        """By how much the secondary's share of weights exceeds its memory; empty if it fits."""
        allowed, need = int(self._memory.read_text()), self.weights(partition)
        return f"out of memory: needs {need / 1e6:.0f} of {allowed / 1e6:.0f} MB" if need > allowed else ""

    def weights(self, partition: Partition) -> int:
        """Bytes that the secondary's share of the layers takes."""
        return weight_bytes(self._source.spec, partition).get(SECONDARY, 0)

    @contextmanager
    def opened(self, **more: Any) -> Iterator[ClusterSession]:
        """Open the model on another primary at the same address; the worker reconnects."""
        primary = self.bed.primary
        with Cluster(
            f"{primary.address}:{PORT}", key=self.bed.key, name=PRIMARY, threads=1,
            dilation=Dilation(primary.spec.slower), on_event=say, **more,
        ) as cluster:  # fmt: skip
            cluster.wait(1, 300.0)
            yield cluster.open(self.bed.model)


@contextmanager
def opened_bed(n_layers: int, ratio: float = PAPER_SLOWER) -> Iterator[World]:
    """Start both devices, with the fast link and memory for all weights."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        said, source = random_model(MODEL, n_layers, folder)
        whole = weight_bytes(source.spec, alone(source.spec, TOKENS))[PRIMARY]
        memory = folder / "memory"
        memory.write_text(f"{int(AMPLE * whole)}")
        words = {SECONDARY: ["--dilate-compute", str(SLOWER), "--memory", f"@{memory}"]}
        with open_bed(_specs(ratio), said, folder, words=words, on_event=say) as bed:
            yield World(bed, memory, whole)


def _specs(ratio: float) -> tuple[DeviceSpec, DeviceSpec]:
    return (
        DeviceSpec(PRIMARY, slower=SLOWER * ratio, bandwidth_Bps=rate(WIDE)),
        DeviceSpec(SECONDARY, slower=SLOWER, bandwidth_Bps=rate(WIDE)),
    )


def _series(world: World, system: System, session: ClusterSession, runs: int) -> list[dict[str, Any]]:
    """Run the three segments, each with its change in the middle of its first run."""
    for _ in range(2):
        world.run(session)  # loads and settles
    found = []
    for number, change in enumerate(SEGMENTS):
        found.append(_segment(world, system, session, number, change, runs))
        if found[-1]["stopped"]:
            break
    return found


def _segment(
    world: World, system: System, session: ClusterSession, number: int, change: Change, runs: int
) -> dict[str, Any]:
    layers: list[dict[str, Any]] = []
    switches: list[str] = []
    changed_at: int | None = None
    stopped, partition = "", None
    for i in range(runs):
        at_s = 0.4 * world.last_s
        timer = Timer(at_s, world.become, (change,))
        if number and not i:
            timer.start()
        ran = world.run(session)
        times = layer_seconds(ran)
        if number and not i:
            timer.join()
            changed_at = sum(end_s < at_s for end_s in segment_ends(ran.program, ran.spans)[1:-1])
        for k, seconds in enumerate(times):
            plan = ran.partitions[k + 1]
            layers.append(
                {
                    "system": system, "segment": number + 1, "run": i, "layer": k, "ms": seconds * 1e3,
                    "plan": describe(plan), "too large": world.excess(plan) != "",
                }
            )  # fmt: skip
        switches += [f"run {i}, layer {s.segment - 1}: {s.reason}" for s in ran.switches]
        switches += [f"run {i}, layer {f.segment - 1}: {f.verdicts or 'stopped there'}" for f in ran.faults]
        partition = ran.partitions[-1]
        if system == "coedge":
            stopped = world.excess(partition) if SECONDARY in partition.participants else "secondary lost"
        if stopped:
            break
    assert partition is not None
    return {
        "layers": layers, "changed at": changed_at, "stopped": stopped, "switches": switches,
        "partition": msgspec.to_builtins(partition), "plan": describe(partition),
        "weights": world.weights(partition),
    }  # fmt: skip


def layer_seconds(run: ClusterDetails | RunRecord) -> list[float]:
    """From the end of each segment to the end of the next, without input and head."""
    return [b - a for a, b in pairwise(segment_ends(run.program, run.spans))][:-1]


def describe(partition: Partition) -> str:
    """Mode and shares."""
    parts = [
        f"{s.device} {s.heads}h {s.rows}r" + (f" {s.columns}c" if s.columns else "") for s in partition.shares
    ]
    return f"{partition.mode}: {', '.join(parts)}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
