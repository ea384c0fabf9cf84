"""What Linux tells of the CPU."""

import ctypes
import platform
from pathlib import Path

import pytest

from pliant import system
from pliant.system import cpu_frequency, cpu_model, frequency_limit, physical_cores

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


@pytest.mark.parametrize(
    ("word", "expected"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("riscv64", "riscv64")],
)
def test_one_architecture_has_one_name(monkeypatch: pytest.MonkeyPatch, word: str, expected: str) -> None:
    """Systems spell it in their own ways; rows, objects and triples are compared by it."""
    monkeypatch.setattr(platform, "machine", lambda: word)
    assert system.machine() == expected


def test_flags_are_read_from_cpuinfo_on_x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the file is missing nothing is known, which is not the same as no features."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert system.cpu_flags(tmp_path / "cpuinfo") is None
    (tmp_path / "cpuinfo").write_text("processor: 0\nflags\t\t: fma abm\n")
    assert system.cpu_flags(tmp_path / "cpuinfo") == {"fma", "abm", "lzcnt"}


def test_flags_are_asked_of_the_auxiliary_vector_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASIMDDP is bit 20 of the first word, I8MM bit 13 and BF16 bit 14 of the second."""
    words = {16: 1 << 1 | 1 << 20, 26: 1 << 13}

    class Libc:
        class getauxval:  # noqa: N801 - a function of libc
            def __new__(cls, vector: int) -> int:  # type: ignore[misc]
                return words[vector]

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc)
    assert system.cpu_flags() == {"asimd", "asimddp", "i8mm"}


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    """Two hardware threads share one set of vector units: a process pinned to both has one core."""
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / ("core_cpus_list" if cpu % 2 else "thread_siblings_list")).write_text(f"{siblings}\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 2}, tmp_path) == 1
    assert physical_cores({0, 1}, tmp_path) == 2
    assert physical_cores({7, 8}, tmp_path) == 2  # the system says nothing of these
