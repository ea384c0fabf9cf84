"""Which plan a run begins with, and when a better one is searched."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from pliant.cluster.lead.adaptive_planner import AdaptivePlanner
from pliant.ir.partition import Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from tests.cluster.fakes import FakeCluster


@dataclass
class Searches:
    """A clock, and searches that take 20 ms by it: the pause after each is a second."""

    now_s: float = 0.0
    lengths: list[int] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def choose(self, spec: EncoderSpec, tokens: int, *_: Any) -> Partition:
        self.now_s += 0.02
        self.lengths.append(tokens)
        return Partition("ws", "p", (Share("p", spec.n_heads, tokens),), tokens)


def test_a_postponed_search_is_made_once_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan based on a partition for another length was kept for ever, or was searched again every time."""
    searches = Searches()
    with FakeCluster() as cluster:
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, searches.choose) as planner:
            for now_s, tokens, lengths in (
                (0.0, 40, [40]),
                (0.5, 20, [40]),
                (0.6, 20, [40]),
                (2.0, 20, [40, 20]),
                (2.1, 20, [40, 20]),
                (30.0, 20, [40, 20]),
                (60.0, 20, [40, 20]),
            ):
                searches.now_s = now_s
                held = planner.begin(cluster.source, tokens, ())
                assert (held.partition.tokens, searches.lengths) == (tokens, lengths)
