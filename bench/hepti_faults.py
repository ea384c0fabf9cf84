"""`hepti.faults`: workers killed, frozen, disconnected, slowed or malicious while a model runs on real
processes.

A primary and three workers on emulated devices, each in a namespace of its own, hold a small BERT with random
weights in equal shares, so that every member is needed for every layer; a fifth device is for the malicious
member. Each fault happens at a random time of a run. The answer is compared with the unsplit model's. Then
the fault is repaired, all members must rejoin, and a run without a fault must use all of them.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import numpy as np

from hepti_beds import Bed, DeviceSpec, check_bed, open_bed, random_bert, rate
from hepti_liar import LIES
from pliant.api.open_cluster import PORT
from pliant.cluster.session.cluster_details import ClusterDetails
from report import Claim, Report, options

N_FAULTS = 200
KINDS = ("kill", "freeze", "cut", "slow", "garbage")
WORKERS, GUEST = ("a", "b", "c"), "guest"
TOLERANCE = 1e-4
LAYERS, TOKENS = 12, 32
LINK, WEAK = "10Mbit", "200kbit"
PATIENCE_S = 300.0
_LIAR = Path(__file__).with_name("hepti_liar.py")


def measure(
    quick: bool, first: int = 0, count: int | None = None, keep: Path | None = None
) -> list[dict[str, Any]]:
    """A row for each fault; fault number n has seed n, and kinds rotate.

    `keep` is a file with one row per line: existing rows are not measured again.
    """
    wanted = range(first, first + ((10 if quick else N_FAULTS) if count is None else count))
    rows = {row["fault"]: row for row in _kept(keep)}
    missing = [number for number in wanted if number not in rows]
    if missing:
        _strike(missing, rows, keep)
    return [rows[number] for number in wanted]


def _strike(numbers: Sequence[int], rows: dict[int, dict[str, Any]], keep: Path | None) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = random_bert(folder, LAYERS, 96, 12, 192, 64)
        names = ("primary", *WORKERS, GUEST)
        specs = [DeviceSpec(one, bandwidth_Bps=rate(LINK)) for one in names]
        with open_bed(specs, model, folder, shares="equal", on_event=_say) as bed:
            bed.network[GUEST].kill()
            rig = _Rig(bed)
            for number in numbers:
                rows[number] = rig.strike(number)
                if keep is not None:
                    with keep.open("a") as file:
                        file.write(json.dumps(rows[number]) + "\n")


def _kept(keep: Path | None) -> list[dict[str, Any]]:
    if keep is None or not keep.exists():
        return []
    return [json.loads(line) for line in keep.read_text().splitlines()]


@dataclass(slots=True)
class _Fault:
    """A fault of a member, `at_s` after the start of a run."""

    kind: str
    detail: str
    device: str
    at_s: float


class _Rig:
    """The testbed, and the correct answers."""

    def __init__(self, bed: Bed) -> None:
        self._bed, self._cluster, self._session = bed, bed.cluster, bed.session
        self._await(3)
        self._feeds = [self._session.sample(TOKENS, seed) for seed in range(5)]
        self._answers = [self._session.alone(feeds).output for feeds in self._feeds]

    def strike(self, number: int) -> dict[str, Any]:
        """Run with one fault, then repair it."""
        rng = random.Random(number)
        whole, back_s = self._whole()
        kind = KINDS[number % len(KINDS)]
        detail = rng.choice(LIES) if kind == "garbage" else ""
        device = GUEST if kind == "garbage" else rng.choice(WORKERS)
        fault = _Fault(kind, detail, device, rng.uniform(0.0, whole.run_s))
        self._prepare(fault, number, rng)
        which = number % len(self._feeds)
        timer = Timer(fault.at_s, self._inflict, (fault,))
        timer.start()
        start_s = time.monotonic()
        reply = self._session(self._feeds[which])
        took_s = time.monotonic() - start_s
        timer.join()
        faults = reply.details.faults
        verdicts = [(v.member, v.reason) for f in faults for v in f.verdicts]
        verdicts += [
            (m.name, m.reason) for m in self._cluster.status() if m.name == f"liar{number}" and m.reason
        ]
        self._mend(fault)
        difference = float(np.abs(reply.output - self._answers[which]).max())
        row = {
            "fault": number,
            "kind": kind if not detail else f"{kind}: {detail}",
            "device": device,
            "at [s]": round(fault.at_s, 3),
            "layer": faults[0].segment - 1 if faults else -1,
            "difference": difference,
            "is right": bool(difference <= TOLERANCE),
            "without fault [s]": round(whole.run_s, 3),
            "answer after the fault [s]": round(max(0.0, took_s - fault.at_s), 3),
            "noticed after [s]": round(max((f.noticed_s for f in faults), default=0.0), 3),
            "planned in [s]": round(sum(f.planned_s for f in faults), 3),
            "repeats": len(faults),
            "left out": ", ".join(dict.fromkeys(member for member, _ in verdicts)),
            "why": "; ".join(dict.fromkeys(reason for _, reason in verdicts)),
            "all back before it [s]": round(back_s, 3),
        }
        print(" ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr, flush=True)
        return row

    def _whole(self) -> tuple[ClusterDetails, float]:
        """A run with every worker, and the time until they rejoined; raises if they do not."""
        start_s = time.monotonic()
        wanted = {"primary", *WORKERS}
        while True:
            self._await(len(WORKERS))
            ran = self._session(self._feeds[0]).details
            if set(ran.partitions[-1].participants) == wanted:
                return ran, time.monotonic() - start_s - ran.run_s
            if time.monotonic() - start_s > PATIENCE_S:
                states = [(m.name, m.reason) for m in self._cluster.status() if m.name in WORKERS]
                raise SystemExit(f"not all are taken in again after {PATIENCE_S} s: {states}")
            time.sleep(0.05)

    def _await(self, n_workers: int) -> None:
        self._cluster.wait(n_workers, PATIENCE_S)

    def _prepare(self, fault: _Fault, number: int, rng: random.Random) -> None:
        """Let the malicious member join first; raw bytes need no member."""
        if fault.kind != "garbage" or fault.detail == "raw":
            return
        at = rng.randint(
            1, 8 * (LAYERS - 1)
        )  # of the tensors that it sends in a run: 8 a layer, to four peers
        self._start_liar(fault.detail, at, f"{self._bed.primary.address}:{PORT}", f"liar{number}")
        self._await(len(WORKERS) + 1)

    def _inflict(self, fault: _Fault) -> None:
        network = self._bed.network
        match fault.kind:
            case "kill":
                network[fault.device].kill()
            case "freeze":
                network[fault.device].freeze()
            case "cut":
                network.cut(fault.device)
            case "slow":
                network.set_bandwidth(fault.device, rate(WEAK))
            case "garbage" if fault.detail == "raw":
                ports = [a for name in ("a", "b") for a in _listening(self._bed, name)]
                self._start_liar("raw", 0, ",".join([f"{self._bed.primary.address}:{PORT}", *ports]), "raw")

    def _mend(self, fault: _Fault) -> None:
        network = self._bed.network
        match fault.kind:
            case "kill":
                self._bed.start(fault.device)
            case "freeze":
                network[fault.device].thaw()
            case "cut":
                network.restore(fault.device)
            case "slow":
                network.set_bandwidth(fault.device, rate(LINK))
            case _:
                network[GUEST].kill()

    def _start_liar(self, lie: str, at: int, join: str, name: str) -> None:
        words = [lie, str(at), join, name, str(self._bed.key), self._bed.model]
        with (self._bed.folder / "liars.log").open("ab") as log:
            command = [sys.executable, str(_LIAR), *words]
            self._bed.network[GUEST].popen(command, stdout=log, stderr=log)


def _say(text: str) -> None:
    print(f"{time.monotonic():.2f} {text}", file=sys.stderr, flush=True)


def _listening(bed: Bed, name: str) -> list[str]:
    """The addresses at which a worker's data connections listen, as a port scan would find them."""
    device = bed.network[name]
    found = []
    for process in device.processes[:1]:
        for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == "0A":
                found.append(f"{device.address}:{int(local.partition(':')[2], 16)}")
    return found


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each kind."""
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        after = [row["answer after the fault [s]"] for row in mine]
        seen = [row for row in mine if row["repeats"]]
        found.append(
            {
                "fault": kind,
                "times": len(mine),
                "right answers": sum(row["is right"] for row in mine),
                "worst difference": max(row["difference"] for row in mine),
                "a layer repeated": len(seen),
                "run without fault [s]": median(row["without fault [s]"] for row in mine),
                "fault to answer, median [s]": median(after),
                "fault to answer, worst [s]": max(after),
                "noticed after, worst [s]": max(row["noticed after [s]"] for row in mine),
                "struck member left out": sum(_is_named(row) for row in seen),
                "others left out": sum(bool(row["left out"]) and not _is_named(row) for row in seen),
            }
        )
    return found


def _is_named(row: dict[str, Any]) -> bool:
    name = f"liar{row['fault']}" if row["device"] == GUEST else row["device"]
    return row["left out"] == name


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Whether every answer was correct."""
    right = sum(row["is right"] for row in rows)
    after = [row["answer after the fault [s]"] for row in rows]
    seeds = f"seeds {rows[0]['fault']} to {rows[-1]['fault']}"
    return [
        Claim(
            "hepti.faults",
            f"{right} of {len(rows)} right",
            f"{N_FAULTS} faults, {N_FAULTS} answers within {TOLERANCE} of the unsplit model's",
            right == len(rows) and len(rows) >= N_FAULTS,
            f"{seeds}; fault to answer {median(after):.2f} s at the median, {max(after):.2f} s at worst; "
            "after each fault every worker was in a run again",
        )
    ]


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", type=int, default=0, help="the first fault's number, which is its seed")
    parser.add_argument("--count", type=int, help="how many faults")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="rows measured before, and those of now")


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    check_bed()
    work = f"BERT of {LAYERS} layers, {TOKENS} tokens, 4 devices, {LINK}/s links"
    report = Report("hepti_faults", work, opts)
    rows = measure(opts.quick, opts.first, opts.count, opts.keep)
    report.table("Faults by kind", summary(rows))
    report.table("Faults", rows)
    report.claims += claims(rows)
    report.finish()


if __name__ == "__main__":
    main()
