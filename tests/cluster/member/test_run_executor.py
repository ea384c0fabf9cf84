"""What a member says of a segment that it ran."""

from collections import Counter
from collections.abc import Mapping

import pytest

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.ir.program import Exchange
from tests.cluster.fakes import FakeCluster


def test_notes_count_the_messages_of_their_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message's time contains the difference of two clocks."""
    counts: list[dict[str, int]] = []

    def next_plan(number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]) -> ReadyPlan:
        counts.append(notes["p"].n_arrived)
        return current

    with FakeCluster() as cluster:
        monkeypatch.setattr(cluster.steer, "next_plan", next_plan)
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        _, _, led = cluster.run()
    assert isinstance(led, RunRecord)
    works = [[step.work for step in segment.steps] for segment in led.program.segments]
    wanted = [Counter(w.src for w in one if isinstance(w, Exchange) and w.dst == "p") for one in works]
    assert counts == wanted[: len(counts)]
    assert max(one.get("a", 0) for one in counts) > 1
