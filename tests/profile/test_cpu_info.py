"""What the system tells of itself."""

import platform
from pathlib import Path

import pytest

from pliant.profile.cpu_info import cpu_frequency, cpu_model, frequency_limit

CPUINFO = "processor\t: 0\nmodel name\t: Fast CPU 9000\ncpu MHz\t\t: 2449.998\n"


def test_the_cpu_goes_by_the_name_its_maker_gave_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Profiles are keyed by it."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert cpu_model(tmp_path / "cpuinfo") == "Fast CPU 9000"
    assert cpu_model(tmp_path / "none") != ""


def test_an_arm_cpu_goes_by_its_board_and_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Arm's cpuinfo has no name, and "aarch64" would be one profile for a phone and a server."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    parts = ("0xd03", "0xd03", "0xd08")
    rows = [f"processor\t: {i}\nCPU implementer\t: 0x41\nCPU part\t: {x}\n" for i, x in enumerate(parts)]
    (tmp_path / "cpuinfo").write_text("\n".join(rows))
    (tmp_path / "model").write_text("Board 4 Model B\0")
    assert cpu_model(tmp_path / "cpuinfo", tmp_path / "model") == "Board 4 Model B 0x41-0xd03 0x41-0xd08"
    assert cpu_model(tmp_path / "cpuinfo", tmp_path / "none") == "0x41-0xd03 0x41-0xd08"
    assert cpu_model(tmp_path / "none", tmp_path / "none") != ""


def test_cpufreq_counts_before_cpuinfo(tmp_path: Path) -> None:
    """cpufreq is in kHz, cpuinfo in MHz: both come out in Hz."""
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    (tmp_path / "scaling_max_freq").write_text("3200000\n")
    assert cpu_frequency(tmp_path, tmp_path / "cpuinfo").frequency_Hz == 3.2e9
    assert cpu_frequency(tmp_path / "none", tmp_path / "cpuinfo").frequency_Hz == 2449.998e6


def test_the_limit_is_what_the_system_allows_and_not_the_rate_of_the_moment(tmp_path: Path) -> None:
    """An idle core runs slowly: its rate would name another profile at every start."""
    (tmp_path / "scaling_cur_freq").write_text("800000\n")
    assert frequency_limit(tmp_path) is None
    (tmp_path / "scaling_max_freq").write_text("3200000\n")
    (tmp_path / "scaling_governor").write_text("schedutil\n")
    (tmp_path / "scaling_setspeed").write_text("<unsupported>\n")
    assert frequency_limit(tmp_path) == 3.2e9
    (tmp_path / "scaling_governor").write_text("userspace\n")
    (tmp_path / "scaling_setspeed").write_text("1200000\n")
    assert frequency_limit(tmp_path) == 1.2e9


def test_a_machine_that_tells_no_frequency_says_why(tmp_path: Path) -> None:
    """STI measures at a frequency; where there is none a profile must say so."""
    found = cpu_frequency(tmp_path / "none", tmp_path / "none")
    assert found.frequency_Hz is None
    assert "cpufreq" in str(found.reason)
