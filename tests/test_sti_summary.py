"""The summary of bench/sti.py's pages: which tasks count, and that the worst rows are told (house.md 36)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/sti_summary.py, whose neighbours it imports by their bare names."""
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("sti_summary", BENCH / "sti_summary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sti_summary", module)
    spec.loader.exec_module(module)
    return module


def _page(above: str, gap: float, small_met: str = "97 of 100") -> str:
    """A page with two places; Ours misses Preload-full by `gap` at the first and by nothing at the second."""
    head = "device, T|majority %|above it|Ours %|Ours-0MB %|Ours within T|Ours-0MB within T|- Preload-full"
    rows = [
        f"a 0.1|50.00|{above}|80.00|79.00|96 of 100|{small_met}|{gap:.2f} [{gap - 1:.2f}, {gap + 1:.2f}]",
        f"a 0.2|50.00|{above}|85.00|84.00|99 of 100|98 of 100|0.00 [-1.00, 1.00]",
    ]
    table = "\n".join(f"| {' | '.join(row.split('|'))} |" for row in (head, "|".join(["---"] * 8), *rows))
    mean = gap / 2
    claim = f"1 baselines better; Ours - Preload-full {mean:.2f} [{mean - 1:.2f}, {mean + 1:.2f}]"
    title = "Devices and targets, points [95 %, paired]"
    return f"# page\n\n## {title}\n\n{table}\n\n## Claims\n\n| `sti.accuracy` | {claim} |\n"


def test_a_task_at_the_majority_class_stands_in_the_summary_but_not_in_the_mean(script: ModuleType) -> None:
    """Where nothing beats the majority class, systems differ by nothing, which would flatter the mean."""
    kept = script.read_result("sst2", _page("yes", -2.0))
    out = script.read_result("rte", _page("no", 0.0))
    lines = "\n".join(script.summary([kept, out]))
    assert "rte: Ours - Preload-full 0.00" in lines
    assert "NOT in the mean" in lines
    assert "mean of sst2: Ours - Preload-full -1.00 [-2.00, 0.00]" in lines


def test_the_summary_tells_the_worst_row_of_all_tasks_and_what_was_infeasible(script: ModuleType) -> None:
    """A reader of the summary alone must not think that every cell was kept."""
    good = script.read_result("sst2", _page("yes", 0.5))
    bad = script.read_result("qnli", _page("yes", -4.0, small_met="infeasible (56 of 100)"))
    lines = script.summary([good, bad])
    assert any(line.startswith("worst of all 4 places against Preload-full: qnli a 0.1") for line in lines)
    assert any("Ours-0MB infeasible (56 of 100)" in line for line in lines)
    assert any(line.startswith("Ours-0MB: infeasible at 1 of 4 places; within T, worst") for line in lines)
    assert "baselines on demand significantly better, all 2 tasks: 2" in lines


def test_pages_of_older_scripts_are_not_read(script: ModuleType) -> None:
    """They lack the majority class, so nobody can tell whether they count."""
    assert script.read_result("sst2", _page("yes", 0.0).replace("above it", "x")) is None
