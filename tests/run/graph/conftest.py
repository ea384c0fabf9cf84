"""What is compiled in tests of graphs."""

from typing import Any

import pytest

from pliant.ir.graph import Graph
from pliant.run.graph.lowering import Lowering


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Every graph that was lowered from here on."""
    found: list[Graph] = []
    lower = Lowering.lower

    def noted(self: Lowering, bound: Graph, *more: Any) -> Any:
        found.append(bound)
        return lower(self, bound, *more)

    monkeypatch.setattr(Lowering, "lower", noted)
    return found
