"""Counters in a made-up /sys/class."""

from pathlib import Path

import pytest

from pliant.system import EnergyMeter, find_meters


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


def test_nothing_is_counted_twice(tmp_path: Path) -> None:
    """A laptop's whole platform beside its package, and cores beside their socket."""
    counters(tmp_path)
    platform = tmp_path / "powercap" / "intel-rapl:1"
    platform.mkdir()
    (platform / "name").write_text("psys\n")
    (platform / "energy_uj").write_text("9000000\n")
    assert [m.name for m in find_meters(tmp_path)] == ["package-0"]
    (tmp_path / "powercap" / "intel-rapl:0" / "energy_uj").unlink()
    for k, label in enumerate(("Ecore000", "Ecore001", "Esocket0"), 1):
        (tmp_path / "hwmon" / "hwmon3" / f"energy{k}_input").write_text(f"{k}\n")
        (tmp_path / "hwmon" / "hwmon3" / f"energy{k}_label").write_text(f"{label}\n")
    assert [m.name for m in find_meters(tmp_path)] == ["Esocket0"]


def test_a_counter_that_began_anew_still_gives_what_was_spent() -> None:
    """RAPL's turn over within minutes under load."""
    meter = EnergyMeter("x", Path("x"), 2_000_000)
    assert meter.joules(500_000, 1_500_000) == pytest.approx(1.0)
    assert meter.joules(1_500_000, 500_000) == pytest.approx(1.0)
    assert EnergyMeter("x", Path("x")).joules(1_500_000, 500_000) == 0.0
