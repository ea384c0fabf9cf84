"""Counters in a made-up /sys/class."""

from pathlib import Path

import pytest

from pliant.route.meter import Meter, find_meters


def counters(root: Path) -> Path:
    package = root / "powercap" / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0\n")
    (package / "energy_uj").write_text("1500000\n")
    (package / "max_energy_range_uj").write_text("2000000\n")
    board = root / "hwmon" / "hwmon3"
    board.mkdir(parents=True)
    (board / "name").write_text("ina226\n")
    (board / "energy1_input").write_text("42\n")
    (board / "energy2_input").write_text("no number\n")
    return root


def test_counters_are_found_and_named(tmp_path: Path) -> None:
    """Those that can be read; others are left out without a word, and hwmon where RAPL counts."""
    found = find_meters(counters(tmp_path))
    assert [(m.name, m.read_uj()) for m in found] == [("package-0", 1_500_000)]
    (tmp_path / "powercap" / "intel-rapl:0" / "energy_uj").unlink()
    assert [(m.name, m.read_uj()) for m in find_meters(tmp_path)] == [("ina226", 42)]
    assert find_meters(tmp_path / "nowhere") == ()


def test_a_counter_that_began_anew_still_gives_what_was_spent() -> None:
    """RAPL's turn over within minutes under load."""
    meter = Meter("x", Path("x"), 2_000_000)
    assert meter.joules(500_000, 1_500_000) == pytest.approx(1.0)
    assert meter.joules(1_500_000, 500_000) == pytest.approx(1.0)
    assert Meter("x", Path("x")).joules(1_500_000, 500_000) == 0.0
