"""Locks, direct reads, mapped files, and the disk below a folder."""

import os
from pathlib import Path

import pytest

from pliant.system import disk_name, has_direct_reads, is_file_map, lock, map_file, read_into, try_lock


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


def test_a_file_system_in_memory_has_no_direct_reads(tmp_path: Path) -> None:
    """It accepts O_DIRECT and answers from memory; where nothing is told of mounts, reads are tried."""
    number = tmp_path.stat().st_dev
    line = f"22 1 {os.major(number)}:{os.minor(number)} / / rw,noatime shared:1 - {{}} /dev/root rw\n"
    assert has_direct_reads(tmp_path, tmp_path)
    for kind, expected in (("ext4", True), ("tmpfs", False)):
        (tmp_path / "mountinfo").write_text("21 1 0:9999 / /x rw - tmpfs x rw\n" + line.format(kind))
        assert has_direct_reads(tmp_path, tmp_path) is expected


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    """Two descriptors of one process exclude each other, as those of two processes do."""
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_a_mapped_file_outlives_its_descriptor(tmp_path: Path) -> None:
    """Maps stay for as long as arrays are made from them, and are told from memory of other kinds."""
    (tmp_path / "data").write_bytes(b"0123456789")
    fd, target = os.open(tmp_path / "data", os.O_RDONLY), bytearray(4)
    mapped = map_file(fd)
    assert read_into(fd, memoryview(target), 8) == 2
    os.close(fd)
    assert bytes(mapped) == b"0123456789"
    assert bytes(target) == b"89\0\0"
    assert mapped.readonly
    assert is_file_map(mapped.obj)
    assert not is_file_map(memoryview(b"").obj)
