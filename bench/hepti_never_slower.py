"""`hepti.never_slower`: the plan that is chosen beside the best single device, over random devices and links.

Five devices stay up; for each set some of them take part, at a pace, memory, bandwidth and delay of the
set's. Each measured itself once, at a usual pace; links are measured for every set, by the members. The
planner then chooses. As in a cluster that serves, a run moves the picture by what it showed, and the next
one's plan is another where that saves enough; the plan of the third run is measured, in turns with the
primary alone and with the other device that is quickest alone by prediction, transfers included.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hepti_beds import DeviceSpec, random_bert, rate
from hepti_rig import PRIMARY, Rig, open_rig
from pliant.cluster.adapt import Picture, is_kept, reason_to_solve
from pliant.cluster.choose import chooser
from pliant.cluster.measure_links import links_of
from pliant.cluster.predict import Solved, layer_seconds, predict
from pliant.cluster.survey import survey_links
from pliant.ir.cluster import Capability
from pliant.ir.partition import Partition, Share
from pliant.models.encoder_random import random_encoder
from pliant.plan.parts import weight_bytes
from report import Claim

N_SETS, BAR = 50, 1.05
TOKENS = 256
FAR = ("a", "b")
"""Those whose frames are held back: one by one, by a process that both share, so their links are weak too."""
LAYERS, HIDDEN, HEADS = 3, 512, 16
LEAST_SLOWER, USUAL_SLOWER = 3.0, 8.5
"""Than this machine, whose two cores five devices share: what they use together must leave them free. They
measure themselves at the usual pace: a core that rests between stages is slower when it wakes."""
LEAST_MBIT, FAR_MBIT, MOST_MBIT = 50, 150, 940
WORKERS = ("a", "b", "c", "d")
_LOOKS = 2
"""Runs after which a plan may be replaced."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One device of a set."""

    name: str
    slower: float
    mbit: float
    delay_s: float
    memory: float
    """Of all weights."""


def draw(seed: int) -> tuple[Drawn, ...]:
    """Two to five devices, the primary among them; a third of the others cannot hold all weights."""
    rng = random.Random(seed)
    others = rng.sample(WORKERS, rng.randint(1, len(WORKERS)))
    return tuple(
        Drawn(
            name,
            slower=round(LEAST_SLOWER * 2 ** rng.uniform(0, 3), 2),
            mbit=round(LEAST_MBIT * ((FAR_MBIT if name in FAR else MOST_MBIT) / LEAST_MBIT) ** rng.random()),
            delay_s=round(rng.uniform(0, 0.01), 4) if name in FAR else 0.0,
            memory=2.0 if name == PRIMARY or rng.random() < 2 / 3 else round(rng.uniform(0.2, 0.9), 2),
        )
        for name in (PRIMARY, *sorted(others))
    )


def measure(quick: bool, first: int, count: int) -> list[dict[str, Any]]:
    """A row for each set; set number n has seed n."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = random_bert(folder, LAYERS, HIDDEN, HEADS, 4 * HIDDEN, TOKENS)
        source = random_encoder(Path(model.removeprefix("random:")))
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
            return [bench.row(number) for number in range(first, first + count)]


@dataclass(slots=True)
class _Bench:
    rig: Rig
    paces: Path
    measured: dict[str, Capability]
    rounds: int

    def row(self, number: int) -> dict[str, Any]:
        """What was chosen for a set, predicted and measured, beside the best single device."""
        drawn = draw(number)
        self._become(drawn)
        picture = self._picture(drawn)
        spec = self.rig.source.spec
        first = self._solve(picture)
        solved = self._settled(first)
        chosen, picture = solved.partition, solved.picture
        singles = {d.name: _alone(spec.n_heads, drawn, d.name) for d in drawn}
        able = [n for n in singles if weight_bytes(spec, singles[n])[n] <= picture.capabilities[n].free_bytes]
        allowed = {name: predict(spec, singles[name], picture).seconds for name in able}
        before = {name: predict(spec, singles[name], first.picture).seconds for name in able}
        quickest = {min(set(able) - {PRIMARY}, key=s.get, default=PRIMARY) for s in (before, allowed)}
        rivals = {name: singles[name] for name in (PRIMARY, *sorted(quickest - {PRIMARY}))}
        plans = {"chosen": chosen, **rivals}
        seconds = self._in_turns(plans)
        best = min(rivals, key=lambda name: median(seconds[name]))
        row = {
            "set": number,
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

    def _solve(self, picture: Picture) -> Solved:
        spec = self.rig.source.spec
        partition = chooser()(spec, TOKENS, picture.capabilities, picture.links, PRIMARY)
        return predict(spec, partition, picture)

    def _settled(self, solved: Solved) -> Solved:
        """The plan that is left once some runs have shown what it takes, by the rules of `cluster.steer`."""
        for _ in range(_LOOKS):
            self.rig.run(solved.partition)
            after = self.rig.seen(solved)
            if not reason_to_solve(solved.picture, after, (), {}, layer_s=partial(layer_seconds, solved)):
                continue
            seen, anew = predict(self.rig.source.spec, solved.partition, after), self._solve(after)
            is_home = anew.partition.participants == (PRIMARY,)
            solved = seen if is_kept(seen.layer_s, anew.layer_s, is_home=is_home) else anew
        return solved

    def _become(self, drawn: Sequence[Drawn]) -> None:
        for d in drawn:
            self.rig.network.set_bandwidth(d.name, rate(f"{d.mbit}Mbit"))
            if d.name in FAR:
                self.rig.network.set_delay(d.name, d.delay_s)
            if d.name != PRIMARY:
                (self.paces / d.name).write_text(f"{d.slower}")
        self.rig.lanes.dilation = {self.rig.lanes.own: drawn[0].slower}

    def _picture(self, drawn: Sequence[Drawn]) -> Picture:
        links = survey_links(self.rig.leader.primary, [d.name for d in drawn])
        assert links, "links were not measured"
        spec = self.rig.source.spec
        whole = weight_bytes(spec, _alone(spec.n_heads, drawn, PRIMARY))[PRIMARY]
        capabilities = {
            d.name: replace(self.measured[d.name], dilation=d.slower, free_bytes=int(d.memory * whole))
            for d in drawn
        }
        return Picture(capabilities, links_of(links))

    def _in_turns(self, plans: dict[str, Partition]) -> dict[str, list[float]]:
        """Seconds of runs A B C A B C; equal plans run once for both. The first round loads."""
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


def _alone(n_heads: int, drawn: Sequence[Drawn], name: str) -> Partition:
    shares = (Share(d.name, n_heads, TOKENS) if d.name == name else Share(d.name) for d in drawn)
    return Partition("ws", PRIMARY, tuple(shares), TOKENS)


def _said(d: Drawn) -> str:
    memory = "" if d.memory > 1 else f", {d.memory:.0%} memory"
    return f"{d.name} /{d.slower} {d.mbit} Mbit/s {d.delay_s * 1e3:.1f} ms{memory}"


def _shares(partition: Partition) -> str:
    taken = (s for s in partition.shares if not s.is_empty)
    parts = (f"{s.device} {s.heads}h {s.rows}r" + (f" {s.columns}c" if s.columns else "") for s in taken)
    return f"{partition.mode}: {', '.join(parts)}"


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """How many sets' chosen plan was slower than the best single device by more than the bar."""
    ratios = [row["chosen / single"] for row in rows]
    slower = [row for row in rows if row["chosen / single"] > BAR]
    n_split = sum(not row["is that single device"] for row in rows)
    errors = [abs(row["predicted [ms]"] / row["measured [ms]"] - 1) for row in rows]
    return [
        Claim(
            "hepti.never_slower",
            f"{len(slower)} of {len(rows)} sets",
            f"chosen above {BAR} of the best single device in none of {N_SETS}",
            not slower and len(rows) >= N_SETS,
            f"median {median(ratios):.2f}, worst {max(ratios):.2f}; split in {n_split}; prediction off by "
            f"{median(errors):.0%} at the median; sets above: {[row['set'] for row in slower]}",
        )
    ]
