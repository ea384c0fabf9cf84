"""Profiles on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile, LayerTime, Overhead, ShardRead
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.profile.profile_cache import (
    VERSION,
    interpolate_profile,
    load_profile,
    profile_path,
    save_profile,
    unreadable_reason,
)

T = Timing(1e-3, 2e-3)
PROFILE = DeviceProfile(
    cpu="Fast CPU", n_threads=2, memory_bytes=10**9, frequency_Hz=None, frequency_reason="none is told",
    subject="bert", io_method="O_DIRECT", reads=(ShardRead(1, 4096, T),), disk=Link(1e-4, 1e9),
    disk_p95=Link(2e-4, 1e9), layers=(LayerTime(16, 4, T, T),), overheads=(Overhead(16, T, T, T),),
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
    assert "damaged" in (unreadable_reason(path) or "")


def test_a_value_that_cannot_be_is_no_profile(tmp_path: Path) -> None:
    """A negative bandwidth parses as JSON but is no Link."""
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
    assert (
        unreadable_reason(path) == f"it has format {VERSION + 1}, and this version of pliant reads {VERSION}"
    )


def test_a_file_without_a_version_is_of_the_first_format(tmp_path: Path) -> None:
    """Profiles were kept before their files held a version; nothing else has changed in them since."""
    path = save_profile(tmp_path / "p.json", PROFILE)
    kept = json.loads(path.read_text())
    del kept["version"]
    path.write_text(json.dumps(kept))
    assert load_profile(path) == PROFILE
    assert unreadable_reason(path) is None


def test_where_no_profile_was_kept_there_is_nothing_to_say(tmp_path: Path) -> None:
    """The first start of a device is no fault."""
    assert unreadable_reason(tmp_path / "p.json") is None


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


def test_a_device_at_another_clock_rate_has_another_file_and_noise_has_not(tmp_path: Path) -> None:
    """T_comp(l, m, freq): a core held at half its rate takes longer; a few MHz more or less do not."""
    about = tmp_path, "A", 2, "s", "d"
    names = [profile_path(*about, f).name for f in (None, 1.2e9, 2.4e9, 2.401e9)]
    assert names[2] == names[3]
    assert len(set(names)) == 3


def test_between_two_rates_layers_follow_the_clock_and_reads_do_not(tmp_path: Path) -> None:
    """Times are linear in the period of the clock: at 1.5 GHz, halfway between those of 1 and 3 GHz."""
    about = tmp_path, "A", 2, "s", "d"
    at_1, at_3 = PROFILE.layers[0].alone, Timing(5e-4, 1e-3)
    fast = replace(PROFILE, frequency_Hz=3e9, layers=(LayerTime(16, 4, at_3, at_3),), disk=Link(0.0, 1e9))
    save_profile(profile_path(*about, 1e9), replace(PROFILE, frequency_Hz=1e9))
    assert interpolate_profile(profile_path(*about, 1.5e9), 1.5e9) is None
    save_profile(profile_path(*about, 3e9), fast)
    found = interpolate_profile(profile_path(*about, 1.5e9), 1.5e9)
    assert found is not None
    # 1 / 1.5 lies a half from 1 / 3 towards 1 / 1
    assert found.layers[0].alone.median_s == pytest.approx((at_1.median_s + at_3.median_s) / 2)
    assert found.layers[0].with_io.p95_s == pytest.approx((at_1.p95_s + at_3.p95_s) / 2)
    assert found.overheads == PROFILE.overheads
    assert found.disk == PROFILE.disk
    assert found.frequency_Hz == 1.5e9
    assert "between 1.00 and 3.00 GHz" in (found.frequency_reason or "")
    for out in (0.9e9, 3.2e9):
        assert interpolate_profile(profile_path(*about, out), out) is None


def test_profiles_of_other_layers_tell_nothing_of_rates_between(tmp_path: Path) -> None:
    """One was measured at lengths of a user's own: the device is measured anew."""
    about = tmp_path, "A", 2, "s", "d"
    other = replace(PROFILE, frequency_Hz=3e9, layers=(LayerTime(32, 4, T, T),))
    save_profile(profile_path(*about, 1e9), replace(PROFILE, frequency_Hz=1e9))
    save_profile(profile_path(*about, 3e9), other)
    assert interpolate_profile(profile_path(*about, 2e9), 2e9) is None


def test_two_threads_keep_one_profile_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own file until it is renamed, so neither fails."""
    path, rename = tmp_path / "p.json", Path.replace
    others = [path]

    def rename_after_another(temporary: Path, target: Path) -> Path:
        if others:
            save_profile(others.pop(), replace(PROFILE, cpu="Slow CPU"))
        return rename(temporary, target)

    monkeypatch.setattr(Path, "replace", rename_after_another)
    assert load_profile(save_profile(path, PROFILE)) == PROFILE
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The user is told where, and that nothing else is left there."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="PLIANT_CACHE"):
        save_profile(tmp_path / "file" / "p.json", PROFILE)
