"""The memory a process may use, from files as Linux writes them."""

from pathlib import Path

from pliant.profile.system_memory import free_memory_bytes, memory_bytes
from pliant.system import memory_limits
from pliant.system.linux.control_groups import groups
from tests.system.linux.cgroups import proc_in, write_group


def test_version_2_bounds_the_memory(tmp_path: Path) -> None:
    """Use is what could not be dropped: pages of files that nobody has mapped are free."""
    proc = proc_in(tmp_path, 2, "/bed/desk")
    stat = "anon 300\ninactive_file 200\nactive_file 150\nfile_mapped 50\nshmem 7"
    own = tmp_path / "cgroup" / "bed" / "desk"
    write_group(own, memory__max=1000, memory__current=700, memory__stat=stat)
    assert memory_bytes(memory_limits(proc)) == 1000
    assert free_memory_bytes(memory_limits(proc)) == 1000 - (700 - (200 + 150 - 50))


def test_version_1_bounds_the_memory(tmp_path: Path) -> None:
    """Other names, and statistics of children in the rows that begin with total."""
    proc = proc_in(tmp_path, 1, "/bed/desk")
    stat = "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 150\ntotal_mapped_file 50"
    own = tmp_path / "cgroup" / "bed" / "desk"
    write_group(own, memory__limit_in_bytes=1000, memory__usage_in_bytes=700, memory__stat=stat)
    assert memory_bytes(memory_limits(proc)) == 1000
    assert free_memory_bytes(memory_limits(proc)) == 600


def test_the_least_limit_of_a_group_and_those_around_it_counts(tmp_path: Path) -> None:
    """A container inside a limited one has what is left of both."""
    proc = proc_in(tmp_path, 2, "/bed/desk")
    top = tmp_path / "cgroup"
    write_group(top / "bed" / "desk", memory__max=1000, memory__current=100)
    write_group(top / "bed", memory__max=800, memory__current=750)
    assert [g.path for g in groups("memory", proc)] == [top / "bed" / "desk", top / "bed", top]
    assert memory_bytes(memory_limits(proc)) == 800
    assert free_memory_bytes(memory_limits(proc)) == 50


def test_more_use_than_limit_is_nothing_free(tmp_path: Path) -> None:
    """A limit may fall below what is held; free memory is never negative."""
    proc = proc_in(tmp_path, 2, "/desk")
    write_group(tmp_path / "cgroup" / "desk", memory__max=100, memory__current=170)
    assert free_memory_bytes(memory_limits(proc)) == 0


def test_no_limit_is_the_machine(tmp_path: Path) -> None:
    """Version 1 writes a huge number, version 2 the word max, and some systems have no groups at all."""
    whole = memory_bytes(memory_limits(tmp_path))
    assert whole > 1 << 20
    assert 0 < free_memory_bytes(memory_limits(tmp_path)) <= whole
    (tmp_path / "two").mkdir()
    proc = proc_in(tmp_path / "two", 2, "/")
    write_group(tmp_path / "two" / "cgroup", memory__max="max")
    assert memory_bytes(memory_limits(proc)) == whole
    (tmp_path / "one").mkdir()
    proc = proc_in(tmp_path / "one", 1, "/")
    write_group(tmp_path / "one" / "cgroup", memory__limit_in_bytes=9223372036854771712)
    assert memory_bytes(memory_limits(proc)) == whole


def test_a_container_that_sees_only_its_part_counts_from_its_top(tmp_path: Path) -> None:
    """Its own path names groups that are not mounted there, or is given from another root."""
    proc = proc_in(tmp_path, 2, "/outside/container", root="/elsewhere")
    write_group(tmp_path / "cgroup", memory__max=1000, memory__current=0)
    assert memory_bytes(memory_limits(proc)) == 1000
    (tmp_path / "bound").mkdir()
    proc = proc_in(tmp_path / "bound", 1, "/docker/abc/inner", root="/docker/abc")
    write_group(tmp_path / "bound" / "cgroup" / "inner", memory__limit_in_bytes=500, memory__usage_in_bytes=0)
    assert memory_bytes(memory_limits(proc)) == 500


def test_mounts_without_a_source_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    """Linux writes an empty field for an empty source; opening a model must not fail at another's mount."""
    proc = proc_in(tmp_path, 2, "/")
    mounts = proc / "mountinfo"
    odd = ("30 1 0:40 / /mnt rw,relatime -  rw", "31 1 0:41 / /mnt rw - tmpfs  rw", "32 1 0:42", "")
    mounts.write_text("\n".join(odd) + "\n" + mounts.read_text() + "33 1 - cgroup2 cgroup rw\n")
    write_group(tmp_path / "cgroup", memory__max=1000, memory__current=0)
    assert memory_bytes(memory_limits(proc)) == 1000


def test_a_cgroup_mount_without_a_source_counts(tmp_path: Path) -> None:
    """The source of a cgroup's mount is any word, or none."""
    proc = proc_in(tmp_path, 1, "/")
    mounts = proc / "mountinfo"
    mounts.write_text(mounts.read_text().replace("- cgroup cgroup rw", "- cgroup  rw"))
    write_group(tmp_path / "cgroup", memory__limit_in_bytes=500, memory__usage_in_bytes=0)
    assert memory_bytes(memory_limits(proc)) == 500


def test_a_mount_of_another_group_limits_nothing(tmp_path: Path) -> None:
    """A container runtime on the host mounts its containers' parts of the tree beside the whole."""
    proc = proc_in(tmp_path, 2, "/desk")
    mounts, foreign = proc / "mountinfo", tmp_path / "foreign"
    line = f"40 25 0:27 /machine/box {foreign} rw,nosuid - cgroup2 cgroup rw\n"
    for text in (line + mounts.read_text(), mounts.read_text() + line):
        mounts.write_text(text)
        write_group(foreign, memory__max=10, memory__current=0)
        write_group(tmp_path / "cgroup" / "desk", memory__max=1000, memory__current=0)
        assert memory_bytes(memory_limits(proc)) == 1000
