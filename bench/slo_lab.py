"""Run ways in scenarios, on a testbed that is opened on demand; results are stored.

Ways may run concurrently, each in its own process and on its own devices: an emulated device sleeps nearly
all of the time, so the devices of several testbeds fit on two cores.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

import checkout  # noqa: F401 - research and testbed lie there
from report import ROOT
from research.deadline_oracle import OracleInputs
from research.deadline_world import Scenario, draw, read_words, read_world
from slo_known import measure_known
from slo_records import Ask, Record, Texts, read_texts
from slo_rig import TRACES, Bed, executed_twice, open_bed, play
from slo_ways import ABLATED, ROUTED, SINGLES
from stored_runs import StoredRuns, tree
from testbed import why_not

FOLDER = ROOT / "bench" / "worlds"
_ANY, KNOWN = "bed", "known"
_JOB_SCENARIOS = 5
"""Most scenarios of a job: few enough that the ways share the machine under the same conditions."""
Player = Callable[[Bed, Scenario, Ask, Texts], list[Record]]


@dataclass(frozen=True, slots=True)
class Job:
    """A way's runs in scenarios, each by world, seed and seconds; or the measurement of the oracle's data
    (`KNOWN`).
    """

    way: str
    scenarios: tuple[tuple[str, int, float], ...]
    player: Player = play
    more: str = ""


@dataclass(slots=True)
class Lab:
    """The testbed, opened on demand, with stored results."""

    kept: StoredRuns
    texts: Texts
    ends: ExitStack
    n_at_once: int = 1
    bed: Bed | None = None

    def fill(self, jobs: Sequence[Job], n_at_once: int | None = None) -> None:
        """Run the `jobs` that are not stored yet, `n_at_once` at a time; a no-op if that is 1."""
        n = self.n_at_once if n_at_once is None else min(n_at_once, self.n_at_once)
        if n < 2:
            return
        work = partial(_do, self.kept.folder, self.kept.is_old_taken)
        known = [replace(jobs[0], way=KNOWN)]  # the oracle's data are measured on an idle machine
        for some, n_some in ((known, 1), (jobs, n)):
            with ProcessPoolExecutor(n_some, get_context("spawn"), max_tasks_per_child=1) as pool:
                list(pool.map(work, some))

    def bed_for(self, scenario: Scenario) -> Bed:
        if self.bed is None:
            self.bed = self.ends.enter_context(open_bed(scenario))
        if self.bed.gateway_s != scenario.gateway.whole_s or set(self.bed.workers) != set(scenario.workers):
            raise SystemExit(f"{scenario.world} has other devices than the worlds before it.")
        return self.bed

    def known(self, scenario: Scenario) -> OracleInputs:
        found = self.kept.get(KNOWN, _ANY, lambda: self._measured(scenario))
        return msgspec.convert(found, OracleInputs)

    def run(
        self, way: str, scenario: Scenario, player: Player = play, more: str = ""
    ) -> tuple[list[Record], int]:
        """A way's records in a scenario, and the number of requests that the gateway executed twice.

        `more` distinguishes runs with another `player`.
        """
        subject = f"{scenario.world}-{scenario.seed}-{scenario.duration_s:g}{more}"
        found = self.kept.get(way, subject, lambda: self._played(way, scenario, player))
        return [Record(**row) for row in found["records"]], found["twice"]

    def _measured(self, scenario: Scenario) -> Any:
        return msgspec.to_builtins(measure_known(self.bed_for(scenario), scenario, self.texts))

    def _played(self, way: str, scenario: Scenario, player: Player) -> dict[str, Any]:
        bed = self.bed_for(scenario)
        bed.mend(scenario)
        before = executed_twice(bed)
        with (SINGLES | ROUTED | ABLATED)[way](bed) as ask:
            records = player(bed, scenario, ask, self.texts)
        return {"records": [asdict(record) for record in records], "twice": executed_twice(bed) - before}


def jobs_of(ways: Sequence[str], scenarios: Sequence[Scenario]) -> list[Job]:
    """Jobs of at most `_JOB_SCENARIOS` scenarios, the ways in turn: each runs beside jobs of the others."""
    names = [(one.world, one.seed, one.duration_s) for one in scenarios]
    chunks = [tuple(names[i : i + _JOB_SCENARIOS]) for i in range(0, len(names), _JOB_SCENARIOS)]
    return [Job(way, chunk) for chunk in chunks for way in ways]


def _do(folder: Path, is_old_taken: bool, job: Job) -> None:
    """Run a job in a separate process."""
    with open_lab(folder, is_old_taken) as lab:
        for world, seed, duration_s in job.scenarios:
            scenario = shortened(scenario_of(world, seed), duration_s)
            if job.way == KNOWN:
                lab.known(scenario)
            else:
                lab.run(job.way, scenario, job.player, job.more)


@contextmanager
def open_lab(keep: Path, is_old_taken: bool, n_at_once: int = 1) -> Iterator[Lab]:
    """A Lab; `Lab.fill` runs `n_at_once` jobs concurrently.

    Exits with the reason if this machine has no testbed, sentences or traces.
    """
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no testbed: {reason}.")
    if not TRACES.is_dir():
        raise SystemExit(f"no traces at {TRACES}; set PLIANT_TRACES to the folder of traces.")
    with ExitStack() as ends:
        yield Lab(StoredRuns(keep, tree(), is_old_taken=is_old_taken), read_texts(), ends, n_at_once)


def scenario_of(name: str, seed: int) -> Scenario:
    """The scenario of a committed world and a seed."""
    world = read_world(FOLDER / f"{name}.toml")
    return draw(world, name, seed, read_words(FOLDER / "words.toml"), TRACES)


def shortened(scenario: Scenario, seconds: float) -> Scenario:
    """The scenario with only its first `seconds` of requests."""
    requests = tuple(r for r in scenario.requests if r.at_s < seconds)
    return replace(scenario, requests=requests, duration_s=seconds)
