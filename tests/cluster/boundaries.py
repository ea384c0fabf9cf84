"""Acts between two layers of a run, at an event and not at a time. Knows no device."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.messages import Note
from pliant.cluster.lead.lead_run import Pause
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.ir.partition import Mode

_PATIENCE_S = 120.0


def _at_once() -> bool:
    return True


@dataclass(frozen=True)
class Act:
    """What is done once, before segment `number`, or before the first after it that runs in `mode`.

    The run goes on when the primary has seen it.
    """

    number: int
    mode: Mode
    do: Callable[[], object]
    is_seen: Callable[[], bool] = _at_once


@contextmanager
def at_boundaries(cluster: Cluster, *acts: Act) -> Iterator[None]:
    """One act after another in runs of the block, all of which happened at its end.

    A plan that is solved or loaded beside a run is waited for at the next boundary: how many layers that
    takes is the machine's affair. Exchanges need the patience for it.
    """
    planner, left = cluster.leader.planner, list(acts)
    following = planner.next_plan

    def unhurried(
        number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]
    ) -> ReadyPlan | Pause:
        if left and number > left[0].number and current.partition.mode == left[0].mode:
            act = left.pop(0)
            act.do()
            _until(act.is_seen)
        held = following(number, current, last, notes)
        planner.wait_for_solution()
        return held

    planner.next_plan = unhurried  # type: ignore[method-assign]
    try:
        yield
    finally:
        planner.next_plan = following  # type: ignore[method-assign]
    assert not left, f"no segment {left[0].number} ran in mode {left[0].mode}"


def _until(is_seen: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not is_seen():
        assert time.monotonic() < until_s, "what was done was not seen"
        time.sleep(0.01)
