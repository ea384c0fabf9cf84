"""Devices on paper and tiny stores, as tests of sessions have them, and patience with upstreams."""

import pytest

from tests.run.conftest import slow_profile as slow_profile
from tests.run.conftest import tiny_store as tiny_store
from tests.serve.nodes import PATIENCE_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may keep an upstream from answering for seconds: that is no failure of it.

    Tests of upstreams that do not answer set what they need.
    """
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", PATIENCE_S)
