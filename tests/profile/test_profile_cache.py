"""Profiles on disk."""

from pathlib import Path

import pytest

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile, Disk, LayerTime, Overhead, ShardRead, Timing
from pliant.profile.profile_cache import load_profile, profile_path, save_profile

T = Timing(1e-3, 2e-3)
PROFILE = DeviceProfile(
    cpu="Fast CPU", n_threads=2, memory_bytes=10**9, frequency_Hz=None, frequency_reason="none is told",
    subject="bert", io_method="O_DIRECT", reads=(ShardRead(1, 4096, T),), disk=Disk(1e-4, 1e9),
    disk_p95=Disk(2e-4, 1e9), layers=(LayerTime(16, 4, T, T),), overheads=(Overhead(16, T, T, T),),
)  # fmt: skip


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every plan after the first is made from the file."""
    path = save_profile(profile_path(tmp_path, "Fast CPU", 2, "bert", "O_DIRECT"), PROFILE)
    assert load_profile(path) == PROFILE


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"\xff\xfe", b'{"cpu": 1}', b"[]"])
def test_a_damaged_file_is_no_profile(tmp_path: Path, text: bytes) -> None:
    """It is measured again; it is neither an error nor believed."""
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    assert load_profile(path) is None


def test_a_value_that_cannot_be_is_no_profile(tmp_path: Path) -> None:
    """A negative bandwidth parses as JSON but is no Disk."""
    path = save_profile(tmp_path / "p.json", PROFILE)
    path.write_bytes(path.read_bytes().replace(b"1000000000.0", b"-1000000000.0"))
    assert load_profile(path) is None


def test_another_device_has_another_file(tmp_path: Path) -> None:
    """More threads, another CPU or another disk would make the same numbers wrong."""
    keys = [
        ("A", 2, "s", "d"),
        ("B", 2, "s", "d"),
        ("A", 4, "s", "d"),
        ("A", 2, "t", "d"),
        ("A", 2, "s", "f"),
    ]
    assert len({profile_path(tmp_path, *key) for key in keys}) == len(keys)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The user is told where, and that nothing else is left there."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="PLIANT_CACHE"):
        save_profile(tmp_path / "file" / "p.json", PROFILE)
