"""Runs of ways in scenarios, on a bed that is opened when something is to be measured; runs are kept."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

import checkout  # noqa: F401 - research and testbed lie there
from kept import Kept, tree
from report import ROOT
from research.deadline_oracle import Known
from research.deadline_world import Scenario, draw, read_words, read_world
from slo_known import measure_known
from slo_records import Ask, Record, Texts, read_texts
from slo_rig import TRACES, Bed, executed_twice, open_bed, play
from slo_ways import ABLATED, ROUTED, SINGLES
from testbed import why_not

FOLDER = ROOT / "bench" / "worlds"
_ANY = "bed"
Player = Callable[[Bed, Scenario, Ask, Texts], list[Record]]


@dataclass(slots=True)
class Lab:
    """The bed, opened when something is to be measured; what was measured is kept."""

    kept: Kept
    texts: Texts
    ends: ExitStack
    bed: Bed | None = None

    def bed_for(self, scenario: Scenario) -> Bed:
        if self.bed is None:
            self.bed = self.ends.enter_context(open_bed(scenario))
        if self.bed.gateway_s != scenario.gateway.whole_s or set(self.bed.workers) != set(scenario.workers):
            raise SystemExit(f"{scenario.world} has other devices than the worlds before it.")
        return self.bed

    def known(self, scenario: Scenario) -> Known:
        found = self.kept.get("known", _ANY, lambda: self._measured(scenario))
        return msgspec.convert(found, Known)

    def run(
        self, way: str, scenario: Scenario, player: Player = play, more: str = ""
    ) -> tuple[list[Record], int]:
        """A way's records in a scenario, and how many requests the gateway executed twice.

        `more` tells runs by another `player` apart.
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


@contextmanager
def open_lab(keep: Path, is_old_taken: bool) -> Iterator[Lab]:
    """Leaves with the reason where this machine has no testbed, sentences or traces."""
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no testbed: {reason}.")
    if not TRACES.is_dir():
        raise SystemExit(f"no traces at {TRACES}; set PLIANT_TRACES to the folder of traces.")
    with ExitStack() as ends:
        yield Lab(Kept(keep, tree(), is_old_taken=is_old_taken), read_texts(), ends)


def scenario_of(name: str, seed: int) -> Scenario:
    """A committed world by one seed."""
    world = read_world(FOLDER / f"{name}.toml")
    return draw(world, name, seed, read_words(FOLDER / "words.toml"), TRACES)
