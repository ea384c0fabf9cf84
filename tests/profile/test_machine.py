"""What the system tells of itself."""

from pathlib import Path

from pliant.profile.machine import cpu_frequency, cpu_model, frequency_limit

CPUINFO = "processor\t: 0\nmodel name\t: Fast CPU 9000\ncpu MHz\t\t: 2449.998\n"


def test_the_cpu_goes_by_the_name_its_maker_gave_it(tmp_path: Path) -> None:
    """Profiles are keyed by it."""
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert cpu_model(tmp_path / "cpuinfo") == "Fast CPU 9000"
    assert cpu_model(tmp_path / "none") != ""


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
