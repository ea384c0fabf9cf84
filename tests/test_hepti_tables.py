"""What the cluster's results page counts: every layer after a change, and where CoEdge is faster."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hepti_adapt_tables")


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hepti_never_slower")


def layers(*times_ms: float) -> list[dict[str, Any]]:
    return [{"ms": ms, "too large": False} for ms in times_ms]


def test_a_layer_that_waits_for_weights_counts(tables: ModuleType) -> None:
    """Two seconds in which weights are replaced are waited for; a median of three would hide them."""
    assert tables.settled_after(layers(100, 100, 100), 100.0) == 0
    assert tables.settled_after(layers(2268, 100, 100, 100), 100.0) == 1
    assert tables.settled_after(layers(2268, 304, 232, 100, 100, 100), 100.0) == 3
    assert tables.settled_after(layers(200, 200, 200), 100.0) is None


def test_where_coedge_is_faster_is_said(tables: ModuleType) -> None:
    """A summary repeats the worst row, not the best."""
    rows = [{tables.ABOVE: -17.1}, {tables.ABOVE: 12.0}, {tables.ABOVE: "-"}]
    assert tables.coedge_faster(rows) == "CoEdge is faster by 17 % in segment 1"
    assert tables.coedge_faster(rows[1:]) == ""


def test_sets_are_not_those_of_the_margin_and_splits_stand_apart(sets: ModuleType) -> None:
    """A margin that is judged by the sets it was chosen on proves nothing, nor do sets without a split."""
    assert sets.FIRST_SEED > 50
    row = {"chosen / single": 1.0, "predicted [ms]": 1.0, "measured [ms]": 1.0, "passed over before": 0}
    single = row | {"seed": 1, "runs on": "one device", "is that single device": True}
    split = row | {"seed": 2, "runs on": "a split", "is that single device": False}
    (claim,) = sets.claims([single] * 30 + [split] * 20)
    assert claim.holds
    assert "20 on a split" in claim.note
    assert "30 on one device" in claim.note
    assert not sets.claims([single] * 31 + [split] * 19)[0].holds
    assert not sets.claims([single] * 30 + [split] * 19 + [split | {"chosen / single": 1.06}])[0].holds
