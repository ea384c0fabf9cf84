"""`hepti.adapt`: Figure 7. Bandwidth falls, then the secondary's memory; Hepti goes on, CoEdge stops.

Two devices, the primary the slower one as in the paper (2.9 times). Both systems run the same model again and
again while the world changes in the middle of a run: first the link, then the memory that the secondary may
use, from 1.63 / 1.2 to 1 / 1.2 of the layers' weights (the paper's 1.63 and 1 GB of 1.2). What Hepti's plan
becomes is held against a cluster that was opened after the change and measured it: the plan that knew.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, Literal

import numpy as np

from hepti_beds import Bed, DeviceSpec, check_bed, open_bed, random_bert, rate
from pliant.clustered import PORT, Cluster, ClusterReply, open_model
from pliant.plan.parts import weight_bytes
from report import Claim, Report, options

LAYERS, TOKENS, HEADS = 24, 256, 16
PRIMARY, SECONDARY = "primary", "secondary"
SLOWER, RATIO = 3.0, 2.9
WIDE, NARROW, POOR = "940Mbit", "250Mbit", "80Mbit"
AMPLE, SHORT = 1.63 / 1.2, 1.0 / 1.2
TOLERANCE, BAR = 1e-4, 1.10
_WINDOW = 3

System = Literal["hepti", "coedge"]


def measure(quick: bool) -> dict[str, Any]:
    """Series of layers of both systems, what each change cost, and the poor link beside local inference."""
    hidden, runs = (256, 2) if quick else (512, 3)
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = random_bert(folder, LAYERS, hidden, HEADS, 4 * hidden, TOKENS)
        memory = folder / "memory"
        weights = 4 * LAYERS * 12 * hidden * hidden
        memory.write_text(f"{int(AMPLE * weights)}")
        specs = [
            DeviceSpec(PRIMARY, slower=SLOWER * RATIO, bandwidth_Bps=rate(WIDE)),
            DeviceSpec(SECONDARY, slower=SLOWER, bandwidth_Bps=rate(WIDE)),
        ]
        words = {SECONDARY: ["--dilate-compute", str(SLOWER), "--memory", f"@{memory}"]}
        with open_bed(specs, model, folder, words=words, on_event=_say) as bed:
            rig = _Rig(bed, memory, weights, runs)
            return rig.all(f"{LAYERS} layers, hidden {hidden}, {HEADS} heads, {TOKENS} tokens")


@dataclass(slots=True)
class _Change:
    """What happens to the world at the start of a segment of the evaluation."""

    name: str
    link: str
    memory: float


SEGMENTS = (
    _Change("1: 940 Mbit/s, memory for WS", WIDE, AMPLE),
    _Change("2: 250 Mbit/s, memory for WS", NARROW, AMPLE),
    _Change("3: 250 Mbit/s, too little memory for WS", NARROW, SHORT),
)


class _Rig:
    """The bed, and the world's state."""

    def __init__(self, bed: Bed, memory: Path, weights: int, runs: int) -> None:
        self._bed, self._memory, self._weights, self._runs = bed, memory, weights, runs
        self._feeds = bed.cluster.sample(bed.model, TOKENS)
        self._spec = open_model(bed.model, bed.folder).spec
        self._expected = bed.cluster.run(bed.model, self._feeds, is_alone=True).answer
        self.worst = 0.0

    def all(self, what: str) -> dict[str, Any]:
        """The evaluation, system by system."""
        hepti = self._series("hepti", self._bed.cluster)
        self._bed.cluster.close()
        knew = [self._knew(change) for change in SEGMENTS]
        self._become(SEGMENTS[0])
        with self._opened(shares="coedge", adapt=False) as cluster:
            coedge = self._series("coedge", cluster)
        poor = self._poor()
        return {
            "what": what,
            "rows": [_row(*one) for one in zip(SEGMENTS, hepti, coedge, knew, strict=True)],
            "layers": [layer for segment in (*hepti, *coedge) for layer in segment["layers"]],
            "poor": poor,
            "worst difference": self.worst,
        }

    def _series(self, system: System, cluster: Cluster) -> list[dict[str, Any]]:
        """The three segments, each with its change in the middle of a run."""
        self._run(cluster)  # loads and settles
        found = []
        for number, change in enumerate(SEGMENTS):
            found.append(self._segment(system, cluster, number, change))
            if found[-1]["stopped"]:
                break
        return found

    def _segment(self, system: System, cluster: Cluster, number: int, change: _Change) -> dict[str, Any]:
        layers: list[dict[str, Any]] = []
        changed_at, stopped, replies = -1, "", []
        for i in range(self._runs):
            usual_s = self._last_s
            timer = Timer(0.4 * usual_s, self._become, (change,))
            if number and not i:
                timer.start()
            reply = self._run(cluster)
            timer.cancel()
            replies.append(reply)
            times = layer_seconds(reply)
            if number and not i:
                timer.join()
                changed_at = sum(np.cumsum(times) < 0.4 * usual_s) + 1
            for k, seconds in enumerate(times):
                mode = reply.partitions[k + 1].mode
                layers.append(
                    {
                        "system": system,
                        "segment": number + 1,
                        "run": i,
                        "layer": k,
                        "ms": seconds * 1e3,
                        "mode": mode,
                    }
                )
            stopped = self._stops(reply) if system == "coedge" else ""
            if stopped:
                break
        after = layers[max(0, changed_at) :]
        return {
            "layers": layers, "changed at": changed_at, "after": [x["ms"] for x in after], "stopped": stopped,
            "partition": describe(replies[-1]),
            "switches": [(s.segment, s.reason) for r in replies for s in r.switches],
        }  # fmt: skip

    def _stops(self, reply: ClusterReply) -> str:
        """Why a partition that is never changed cannot run any more; empty while it can."""
        partition = reply.partitions[-1]
        if SECONDARY not in partition.participants:
            return "the secondary was lost"
        allowed, need = int(self._memory.read_text()), weight_bytes(self._spec, partition)[SECONDARY]
        return f"out of memory: needs {need / 1e6:.0f} of {allowed / 1e6:.0f} MB" if need > allowed else ""

    def _knew(self, change: _Change) -> dict[str, Any]:
        """A cluster that is opened after the change: it measures, plans, and keeps to that."""
        self._become(change)
        with self._opened(adapt=False) as cluster:
            self._run(cluster)
            replies = [self._run(cluster) for _ in range(self._runs)]
        times = [s * 1e3 for reply in replies for s in layer_seconds(reply)]
        return {"after": times, "partition": describe(replies[-1])}

    def _poor(self) -> list[dict[str, Any]]:
        """A link below 100 Mbit/s: 1D, and what Hepti chooses, beside local inference, in turns."""
        rows = []
        for name, mode, at_first in (
            ("1D-tiled, chosen at 250 Mbit/s", "1d", NARROW),
            ("chosen", "auto", POOR),
        ):
            self._become(_Change("before", at_first, SHORT))
            with self._opened(mode=mode, adapt=False) as cluster:
                for is_alone in (False, True):
                    self._run(cluster, is_alone=is_alone)
                self._become(_Change("poor", POOR, SHORT))
                pairs = [(self._run(cluster), self._run(cluster, is_alone=True)) for _ in range(self._runs)]
            ratio = median(split.seconds / alone.seconds for split, alone in pairs)
            rows.append(
                {
                    "plan": name,
                    "partition": describe(pairs[-1][0]),
                    "split [ms]": median(split.seconds for split, _ in pairs) * 1e3,
                    "local [ms]": median(alone.seconds for _, alone in pairs) * 1e3,
                    "against local [%]": 100 * (ratio - 1),
                }
            )
        return rows

    @contextmanager
    def _opened(self, **more: Any) -> Iterator[Cluster]:
        """Another primary at the same place; the worker knocks there again."""
        primary = self._bed.primary
        address = f"{primary.address}:{PORT}"
        key = self._bed.key
        with Cluster(
            address, key=key, name=PRIMARY, threads=1, dilation=primary.spec.slower, on_event=_say, **more
        ) as cluster:
            cluster.wait(1, 60.0)
            yield cluster

    def _become(self, change: _Change) -> None:
        for name in (PRIMARY, SECONDARY):
            self._bed.network.set_bandwidth(name, rate(change.link))
        whole = self._memory.with_suffix(".new")
        whole.write_text(f"{int(change.memory * self._weights)}")
        whole.replace(self._memory)
        time.sleep(0)

    def _run(self, cluster: Cluster, *, is_alone: bool = False) -> ClusterReply:
        reply = cluster.run(self._bed.model, self._feeds, is_alone=is_alone)
        self._last_s = reply.seconds
        self.worst = max(self.worst, float(np.abs(reply.answer - self._expected).max()))
        return reply


def layer_seconds(reply: ClusterReply) -> list[float]:
    """From the end of each segment to the end of the next, without input and head."""
    ends, at = [], 0
    for segment in reply.program.segments:
        n = len(segment.steps)
        ends.append(max((span.end_s for span in reply.spans[at : at + n]), default=ends[-1] if ends else 0.0))
        at += n
    return [b - a for a, b in pairwise(ends)][:-1]


def describe(reply: ClusterReply) -> str:
    """Mode and shares of the last plan."""
    partition = reply.partitions[-1]
    parts = [
        f"{s.device} {s.heads}h {s.rows}r" + (f" {s.columns}c" if s.columns else "") for s in partition.shares
    ]
    return f"{partition.mode}: {', '.join(parts)}"


def settled_after(after: Sequence[float], knew_ms: float) -> int | None:
    """Layers from the change until three in a row are, at their median, within the bar of who knew."""
    for i in range(len(after) - _WINDOW + 1):
        if median(after[i : i + _WINDOW]) <= BAR * knew_ms:
            return i
    return None


def _row(
    change: _Change, hepti: dict[str, Any], coedge: dict[str, Any], knew: dict[str, Any]
) -> dict[str, Any]:
    knew_ms = median(knew["after"])
    is_change = hepti["changed at"] >= 0
    late = hepti["after"][len(hepti["after"]) // 2 :]
    coedge_ms = median(coedge["after"][len(coedge["after"]) // 2 :])
    hepti_ms = median(late)
    return {
        "segment": change.name,
        "Hepti, a layer [ms]": hepti_ms,
        "CoEdge, a layer [ms]": coedge["stopped"] or coedge_ms,
        "CoEdge above Hepti [%]": "-" if coedge["stopped"] else 100 * (coedge_ms / hepti_ms - 1),
        "the plan that knew [ms]": knew_ms,
        "Hepti / knew": hepti_ms / knew_ms,
        "within 10 % after [layers]": settled_after(hepti["after"], knew_ms) if is_change else "-",
        "new plans": "; ".join(f"before layer {at - 1}: {why}" for at, why in hepti["switches"]),
        "Hepti's last plan": hepti["partition"],
        "plan that knew": knew["partition"],
        "CoEdge's plan": coedge["partition"],
    }


def claims(rows: dict[str, Any]) -> list[Claim]:
    """Whether Hepti ran on where CoEdge stopped, and how soon it was as good as the plan that knew."""
    changed = rows["rows"][1:]
    stops = str(changed[-1]["CoEdge, a layer [ms]"])
    runs_on = stops.startswith("out of memory") and rows["worst difference"] <= TOLERANCE
    after = [row["within 10 % after [layers]"] for row in changed]
    ratios = [row["Hepti / knew"] for row in changed]
    is_soon = all(n is not None and n <= 1 for n in after) and max(ratios) <= BAR
    said = ", ".join(f"{ratio:.2f} after {n} layers" for ratio, n in zip(ratios, after, strict=True))
    return [
        Claim("hepti.adapt", f"CoEdge {stops}; Hepti runs on: {runs_on}", "Figure 7's third segment", runs_on,
              f"answers within {rows['worst difference']:.1e} of the unsplit model's"),
        Claim("hepti.adapt", f"Hepti / the plan that knew: {said}", "within 10 % after one layer", is_soon,
              "bandwidth, then memory, changed inside of a run"),
    ]  # fmt: skip


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    opts = options(__doc__ or "")
    check_bed()
    found = measure(opts.quick)
    report = Report(
        "hepti_adapt",
        f"random BERT, {found['what']}, 2 devices {SLOWER} and {SLOWER * RATIO:.1f} times slower",
        opts,
    )
    report.table("Figure 7: segments", found["rows"])
    report.table("Below 100 Mbit/s, beside local inference", found["poor"])
    report.table("Figure 7: every layer", found["layers"])
    report.claims += claims(found)
    report.finish()


if __name__ == "__main__":
    main()
