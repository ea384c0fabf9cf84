"""`hepti.never_slower`: the chosen plan against the best single device, over random devices and links.

Five devices run; each set uses some of them, with its own speeds, memory limits, bandwidths and delays. Each
device measured itself once, at a usual speed; the members measure the links for every set. Then the planner
chooses. As in a serving cluster, a run updates the picture, and the next run has another plan if that saves
enough; the plan of the third run is measured, interleaved with the primary alone and with the other device
that is predicted to be the fastest alone, including transfers.

The margin of a split (`margin`) was chosen on seeds 0 to 49. The sets here have other seeds, and at
least 20 of 50 of them run a split: when a part has the most single devices allowed, further sets that would
run on one device are skipped.
"""

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hepti_beds import DeviceSpec, random_bert, rate
from hepti_rig import PRIMARY, Rig, open_rig
from pliant.api.open_encoder import open_encoder
from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.join_spans import segment_ends
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.measure_links import links_of
from pliant.cluster.lead.predict import Prediction, layer_seconds, predict
from pliant.cluster.lead.survey import survey_links
from pliant.cluster.watch.adapt import Topology, is_kept, reason_to_solve
from pliant.ir.capability import Capability
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition, Share
from pliant.plan.split.stage_graphs import weight_bytes
from report import Claim

N_SETS, BAR = 50, 1.05
FIRST_SEED = 10_000
"""Set n has seed FIRST_SEED + n: different from the seeds on which the margin of a split was chosen."""
SPLIT = 0.4
"""The least fraction of sets that run a split."""
_MOST_DRAWN = 100
"""The number of seeds of a part; its sets are the first ones that are not skipped."""
TOKENS = 256
FAR = ("a", "b")
"""Devices with a delay. A process that both share delays each frame, so their links are also slow."""
LAYERS, HIDDEN, HEADS = 3, 512, 16
LEAST_SLOWER, USUAL_SLOWER = 3.0, 8.5
"""Dilations: five devices share this machine's two cores, which must not be saturated. Devices measure
themselves at the usual speed, since a core that rests between stages is slower when it wakes.
"""
LEAST_MBIT, FAR_MBIT, MOST_MBIT = 50, 150, 940
WORKERS = ("a", "b", "c", "d")
_LOOKS = 2
"""Runs after which a plan may be replaced."""


@dataclass(frozen=True, slots=True)
class RandomDevice:
    """One device of a set."""

    name: str
    slower: float
    mbit: float
    delay_s: float
    memory: float
    """The memory limit, as a fraction of all weights."""


def draw(seed: int) -> tuple[RandomDevice, ...]:
    """Two to five devices, the primary among them; a third of the others cannot hold all weights."""
    rng = random.Random(seed)
    others = rng.sample(WORKERS, rng.randint(1, len(WORKERS)))
    return tuple(
        RandomDevice(
            name,
            slower=round(LEAST_SLOWER * 2 ** rng.uniform(0, 3), 2),
            mbit=round(LEAST_MBIT * ((FAR_MBIT if name in FAR else MOST_MBIT) / LEAST_MBIT) ** rng.random()),
            delay_s=round(rng.uniform(0, 0.01), 4) if name in FAR else 0.0,
            memory=2.0 if name == PRIMARY or rng.random() < 2 / 3 else round(rng.uniform(0.2, 0.9), 2),
        )
        for name in (PRIMARY, *sorted(others))
    )


def measure(quick: bool, part: int, count: int) -> list[dict[str, Any]]:
    """A row for each of `count` sets, at least SPLIT of them splits, from the part's own seeds."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = random_bert(folder, LAYERS, HIDDEN, HEADS, 4 * HIDDEN, TOKENS)
        source = open_encoder(model, folder)
        paces = folder / "paces"
        paces.mkdir()
        for worker in WORKERS:
            (paces / worker).write_text(f"{USUAL_SLOWER}")
        specs = [
            DeviceSpec(n, USUAL_SLOWER, bandwidth_Bps=rate("940Mbit"), delay_s=0.0 if n in FAR else None)
            for n in (PRIMARY, *WORKERS)
        ]
        with open_rig(specs, model, source, folder / "rig", TOKENS, paces=paces) as rig:
            bench = _Bench(rig, paces, rig.devices(), 2 if quick else 4)
            return bench.rows(range(part * _MOST_DRAWN, (part + 1) * _MOST_DRAWN), count)


@dataclass(slots=True)
class _Bench:
    rig: Rig
    paces: Path
    measured: dict[str, Capability]
    rounds: int

    def rows(self, numbers: Iterable[int], count: int) -> list[dict[str, Any]]:
        """The first `count` sets, with the limit on single devices."""
        rows: list[dict[str, Any]] = []
        most_single, n_single, n_passed = count - ceil(SPLIT * count), 0, 0
        for number in numbers:
            drawn = draw(FIRST_SEED + number)
            self._become(drawn)
            first = self._solve(self._picture(drawn), Margins())
            solved = self._settled(first)
            is_single = len(solved.partition.participants) == 1
            if is_single and n_single == most_single:
                n_passed += 1
                self.rig.release()
                continue
            n_single += is_single
            rows.append(self._row(number, drawn, first, solved) | {"passed over before": n_passed})
            n_passed = 0
            if len(rows) == count:
                return rows
        raise SystemExit(f"{_MOST_DRAWN} sets gave {len(rows)} of {count}: splits are too rare.")

    def _row(
        self, number: int, drawn: Sequence[RandomDevice], first: Prediction, solved: Prediction
    ) -> dict[str, Any]:
        """The chosen plan for a set, predicted and measured, against the best single device."""
        spec = self.rig.source.spec
        chosen, topology = solved.partition, solved.topology
        singles = {d.name: _alone(spec.n_heads, drawn, d.name) for d in drawn}
        able = [
            n for n in singles if weight_bytes(spec, singles[n])[n] <= topology.capabilities[n].free_bytes
        ]
        allowed = {name: predict(spec, singles[name], topology).seconds for name in able}
        before = {name: predict(spec, singles[name], first.topology).seconds for name in able}
        quickest = {min(set(able) - {PRIMARY}, key=s.get, default=PRIMARY) for s in (before, allowed)}
        rivals = {name: singles[name] for name in (PRIMARY, *sorted(quickest - {PRIMARY}))}
        plans = {"chosen": chosen, **rivals}
        seconds = self._in_turns(plans)
        best = min(rivals, key=lambda name: median(seconds[name]))
        row = {
            "seed": FIRST_SEED + number,
            "runs on": "one device" if len(chosen.participants) == 1 else "a split",
            "devices": "; ".join(_said(d) for d in drawn),
            "chosen": _shares(chosen),
            "chosen at first": "the same" if chosen == first.partition else _shares(first.partition),
            "predicted [ms]": solved.seconds * 1e3,
            "measured [ms]": median(seconds["chosen"]) * 1e3,
            "best single": best,
            "single, predicted [ms]": allowed[best] * 1e3,
            "single, measured [ms]": median(seconds[best]) * 1e3,
            "chosen / single": median(a / b for a, b in zip(seconds["chosen"], seconds[best], strict=True)),
            "predicted ratio": solved.seconds / allowed[best],
            "is that single device": chosen == rivals[best],
        }
        print(" ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr, flush=True)
        self.rig.release()
        return row

    def _solve(self, topology: Topology, margins: Margins) -> Prediction:
        spec = self.rig.source.spec
        partition = make_chooser(least_gain=lambda: margins.least_gain)(
            spec, TOKENS, topology.capabilities, topology.links, PRIMARY
        )
        return predict(spec, partition, topology)

    def _settled(self, solved: Prediction) -> Prediction:
        """The plan after some runs updated the topology, by the rules of `adapt`."""
        margins = Margins()
        for _ in range(_LOOKS):
            run = self.rig.run(solved.partition)
            ends, planned = (segment_ends(one.program, one.spans) for one in (run, solved))
            margins.observe(solved.partition, planned[-2] - planned[0], ends[-2] - ends[0])
            after = self.rig.seen(solved)
            if not reason_to_solve(solved.topology, after, (), {}, 0, partial(layer_seconds, solved)):
                continue
            seen, anew = predict(self.rig.source.spec, solved.partition, after), self._solve(after, margins)
            is_home = anew.partition.participants == (PRIMARY,)
            solved = seen if is_kept(seen.layer_s, anew.layer_s, is_home=is_home) else anew
        return solved

    def _become(self, drawn: Sequence[RandomDevice]) -> None:
        for d in drawn:
            self.rig.network.set_bandwidth(d.name, rate(f"{d.mbit}Mbit"))
            if d.name in FAR:
                self.rig.network.set_delay(d.name, d.delay_s)
            if d.name != PRIMARY:
                (self.paces / d.name).write_text(f"{d.slower}")
        self.rig.lanes.emulated.dilation = Dilation(drawn[0].slower)

    def _picture(self, drawn: Sequence[RandomDevice]) -> Topology:
        links = survey_links(self.rig.leader.primary, [d.name for d in drawn])
        assert links, "links were not measured"
        spec = self.rig.source.spec
        whole = weight_bytes(spec, _alone(spec.n_heads, drawn, PRIMARY))[PRIMARY]
        capabilities = {
            d.name: replace(
                self.measured[d.name], dilation=Dilation(d.slower), free_bytes=int(d.memory * whole)
            )
            for d in drawn
        }
        return Topology(capabilities, links_of(links))

    def _in_turns(self, plans: dict[str, Partition]) -> dict[str, list[float]]:
        """Seconds of interleaved runs A B C A B C; equal plans are run once. The first round is a warm-up."""
        seconds: dict[str, list[float]] = {name: [] for name in plans}
        for round_ in range(self.rounds + 1):
            done: dict[Partition, float] = {}
            for name in plans if round_ % 2 else list(plans)[::-1]:
                plan = plans[name]
                if plan not in done:
                    done[plan] = self.rig.run(plan).seconds
                if round_:
                    seconds[name].append(done[plan])
        return seconds


def _alone(n_heads: int, drawn: Sequence[RandomDevice], name: str) -> Partition:
    shares = (Share(d.name, n_heads, TOKENS) if d.name == name else Share(d.name) for d in drawn)
    return Partition("ws", PRIMARY, tuple(shares), TOKENS)


def _said(d: RandomDevice) -> str:
    memory = "" if d.memory > 1 else f", {d.memory:.0%} memory"
    return f"{d.name} /{d.slower} {d.mbit} Mbit/s {d.delay_s * 1e3:.1f} ms{memory}"


def _shares(partition: Partition) -> str:
    taken = (s for s in partition.shares if not s.is_empty)
    parts = (f"{s.device} {s.heads}h {s.rows}r" + (f" {s.columns}c" if s.columns else "") for s in taken)
    return f"{partition.mode}: {', '.join(parts)}"


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for the sets that ran a split, and one for those that ran on one device."""
    found = []
    for kind in ("a split", "one device"):
        own = [row for row in rows if row["runs on"] == kind]
        if own:
            ratios = [row["chosen / single"] for row in own]
            found.append(
                {
                    "runs on": kind,
                    "sets": len(own),
                    "is the best single device itself": sum(row["is that single device"] for row in own),
                    f"above {BAR}": sum(ratio > BAR for ratio in ratios),
                    "chosen / single, least": min(ratios),
                    "median": median(ratios),
                    "worst": max(ratios),
                    "prediction off by, median": median(map(_error, own)),
                    "measured / predicted, median": median(1 / _of_measured(row) for row in own),
                }
            )
    return found


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The number of sets whose chosen plan was slower than the best single device by more than the bar."""
    slower = [row for row in rows if row["chosen / single"] > BAR]
    kinds = {row["runs on"]: row for row in summary(rows)}
    n_split = kinds["a split"]["sets"] if "a split" in kinds else 0
    said = "; ".join(
        f"{row['sets']} on {kind}: median {row['median']:.2f}, worst {row['worst']:.2f}, prediction off by "
        f"{row['prediction off by, median']:.0%} at the median"
        for kind, row in kinds.items()
    )
    return [
        Claim(
            "hepti.never_slower",
            f"{len(slower)} of {len(rows)} sets",
            f"chosen above {BAR} of the best single device in none of {N_SETS}, of which at least "
            f"{SPLIT:.0%} run a split",
            not slower and len(rows) >= N_SETS and n_split >= SPLIT * len(rows),
            f"{said}; seeds from {FIRST_SEED} on, {sum(row['passed over before'] for row in rows)} sets "
            f"passed over for single devices; seeds above: {[row['seed'] for row in slower]}",
        )
    ]


def _of_measured(row: dict[str, Any]) -> float:
    return float(row["predicted [ms]"] / row["measured [ms]"])


def _error(row: dict[str, Any]) -> float:
    return abs(_of_measured(row) - 1)
