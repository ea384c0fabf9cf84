"""The disk below a folder."""

import os
from pathlib import Path

import pytest

from pliant.profile.disk_name import disk_name


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The device of a disk, whose first partition is the file system of `tmp_path`."""
    number = tmp_path.stat().st_dev
    disk = tmp_path / "sys" / "devices" / "pci" / "block" / "sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "sda1" / "partition").write_text("1\n")
    blocks = tmp_path / "sys" / "dev" / "block"
    blocks.mkdir(parents=True)
    (blocks / f"{os.major(number)}:{os.minor(number)}").symlink_to(disk / "sda1")
    return disk


def test_a_disk_goes_by_its_model_whatever_the_kernel_calls_it_today(tmp_path: Path, disk: Path) -> None:
    """Of two disks, either may be sda after the next start."""
    assert disk_name(tmp_path, tmp_path / "sys") == "sda"
    (disk / "device").mkdir()
    (disk / "device" / "model").write_text("Fast Disk 980   \n")
    assert disk_name(tmp_path, tmp_path / "sys") == "Fast Disk 980"


def test_a_mapping_goes_by_its_name(tmp_path: Path, disk: Path) -> None:
    """An encrypted volume is another disk than the one below it."""
    (disk / "sda1" / "partition").unlink()
    (disk / "sda1" / "dm").mkdir()
    (disk / "sda1" / "dm" / "name").write_text("crypt-root\n")
    assert disk_name(tmp_path, tmp_path / "sys") == "crypt-root"


def test_a_file_system_without_a_disk_has_no_name(tmp_path: Path) -> None:
    """In a container or in memory, no device is told."""
    assert disk_name(tmp_path, tmp_path / "sys") == ""
