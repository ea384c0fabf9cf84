"""Limits of control groups, from files as Linux writes them."""

from pathlib import Path

import pytest

from pliant.system import cpu_quota
from tests.system.linux.cgroups import proc_in, write_group


@pytest.mark.parametrize(("version", "files"), [
    (1, {"cpu__cfs_quota_us": 150_000, "cpu__cfs_period_us": 100_000}),
    (2, {"cpu__max": "150000 100000"}),
])  # fmt: skip
def test_the_least_quota_of_a_group_and_those_around_it_counts(
    tmp_path: Path, version: int, files: dict[str, object]
) -> None:
    """A pod's limit bounds the containers in it, whatever these say."""
    proc = proc_in(tmp_path, version, "/pod/box", controller="cpu")
    write_group(tmp_path / "cgroup/pod/box")
    assert cpu_quota(proc) is None
    write_group(tmp_path / "cgroup/pod", **files)
    assert cpu_quota(proc) == 1.5


@pytest.mark.parametrize(("version", "files"), [
    (1, {"cpu__cfs_quota_us": -1, "cpu__cfs_period_us": 100_000}),
    (1, {"cpu__cfs_quota_us": 50_000}),
    (2, {"cpu__max": "max 100000"}),
    (2, {"cpu__max": "damaged"}),
])  # fmt: skip
def test_a_group_without_a_quota_bounds_nothing(
    tmp_path: Path, version: int, files: dict[str, object]
) -> None:
    """Version 1 writes -1, version 2 the word max; the root group has no such file at all."""
    proc = proc_in(tmp_path, version, "/box", controller="cpu")
    write_group(tmp_path / "cgroup/box", **files)
    assert cpu_quota(proc) is None
