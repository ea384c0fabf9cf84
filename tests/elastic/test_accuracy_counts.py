"""The grid as table, JSON and picture."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from pliant.elastic.accuracy_counts import AccuracyCounts, as_json, as_table
from pliant.elastic.heatmap import draw_grid

GRID = AccuracyCounts((1, 4), 8, ((4, 5), (6, 8)))


def test_accuracy_is_the_share_answered_right() -> None:
    """Rows are depths from 1, columns are the trained widths, not positions."""
    assert (GRID.accuracy(1, 4), GRID.accuracy(2, 4)) == (0.625, 1.0)
    assert as_json(GRID)["accuracy"] == [[0.5, 0.625], [0.75, 1.0]]
    json.dumps(as_json(GRID))


def test_tables_give_per_cent_by_layers_and_slices() -> None:
    """A person reads them there; JSON has fractions."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(as_table(GRID, "dev"))
    assert "62.5" in captured.get()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_heat_map_is_written_in_the_format_its_name_asks_for(ending: str, tmp_path: Path) -> None:
    """SVG for documents, PNG for a glance."""
    path = draw_grid(GRID, tmp_path / f"grid.{ending}", "accuracy")
    start = path.read_bytes()[:100]
    assert start.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
