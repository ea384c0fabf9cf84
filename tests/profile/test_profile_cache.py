"""Profiles on disk."""

import json
from pathlib import Path

import pytest

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile, Disk, LayerTime, Overhead, ShardRead, Timing
from pliant.profile.profile_cache import (
    VERSION,
    load_profile,
    profile_path,
    save_profile,
    why_unread,
)

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
    assert "damaged" in (why_unread(path) or "")


def test_a_value_that_cannot_be_is_no_profile(tmp_path: Path) -> None:
    """A negative bandwidth parses as JSON but is no Disk."""
    path = save_profile(tmp_path / "p.json", PROFILE)
    path.write_bytes(path.read_bytes().replace(b"1000000000.0", b"-1000000000.0"))
    assert load_profile(path) is None


def test_a_file_of_another_format_is_measured_again_and_says_so(tmp_path: Path) -> None:
    """Its numbers may mean something else: a plan made from them would be wrong without a word."""
    path = save_profile(tmp_path / "p.json", PROFILE)
    kept = json.loads(path.read_text())
    assert kept["version"] == VERSION
    path.write_text(json.dumps(kept | {"version": VERSION + 1}))
    assert load_profile(path) is None
    assert why_unread(path) == f"it has format {VERSION + 1}, and this version of pliant reads {VERSION}"


def test_a_file_without_a_version_is_of_the_first_format(tmp_path: Path) -> None:
    """Profiles were kept before their files held a version; nothing else has changed in them since."""
    path = save_profile(tmp_path / "p.json", PROFILE)
    kept = json.loads(path.read_text())
    del kept["version"]
    path.write_text(json.dumps(kept))
    assert load_profile(path) == PROFILE
    assert why_unread(path) is None


def test_where_no_profile_was_kept_there_is_nothing_to_say(tmp_path: Path) -> None:
    """The first start of a device is no fault."""
    assert why_unread(tmp_path / "p.json") is None


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
