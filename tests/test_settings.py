"""One cache folder and one number of threads for every engine."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.parser
import pytest

import pliant
from pliant.api.open_cluster import Cluster
from pliant.api.open_endpoint import open_endpoint
from pliant.cluster.net.key import make_key
from pliant.errors import InputError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.run.submodel.engine import Engine
from pliant.settings import cache_folder, config_folder, thread_count
from pliant.store.build import build
from pliant.store.read import open_store
from pliant.system.linux.control_groups import Cgroup
from testbed.groups import find_hierarchy, make_group, remove_group

SOURCES = Path(pliant.__file__).parent
CPUS = sorted(os.sched_getaffinity(0))


def test_the_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is asked for, then PLIANT_CACHE, then the user's own cache folder as XDG defines it."""
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert cache_folder("here") == Path("here")
    assert cache_folder() == tmp_path
    monkeypatch.setenv("PLIANT_CACHE", "")
    assert cache_folder() == Path("/var/x/pliant")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == Path.home() / ".cache/pliant"
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_folder() == Path.home() / ".config/pliant"


def test_only_settings_reads_the_environment() -> None:
    """A second place that counts CPUs or finds folders is how caches and threads came to differ."""
    reads = re.compile(r"\benvironb?\b|getenv|putenv|(?<!def )allowed_cpus\(|cpu_count|Path\.home|expanduser")
    found = {path.name for path in SOURCES.rglob("*.py") if reads.search(path.read_text(encoding="utf-8"))}
    assert found == {"settings.py"}


def test_threads_that_are_asked_for_are_had() -> None:
    """The option overrides what the machine allows. 0 is a mistake: it was read as "as many as there are"."""
    assert thread_count(64) == 64
    for wrong in (0, -1):
        with pytest.raises(InputError, match=f"{wrong} threads are too few"):
            thread_count(wrong)
    with pytest.raises(InputError, match=r"100000 threads are too many; give at most "):
        thread_count(100_000)
    for unreadable in (1.5, "2"):
        with pytest.raises(InputError, match=f"{unreadable!r} is not a number of threads"):
            thread_count(unreadable)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quota", "n_threads"), [(0.5, 1), (1.5, 1), (2.0, 2), (3.9, 3), (64.0, 4), (None, 4)]
)
def test_no_more_threads_than_whole_cores_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, n_threads: int
) -> None:
    """Two threads under 1.5 cores are stopped for the last quarter of every period: the tail pays."""
    monkeypatch.setattr("pliant.settings.physical_cores", lambda cpus: 4)
    monkeypatch.setattr("pliant.settings.cpu_quota", lambda: quota)
    assert thread_count() == n_threads


_COUNT = """
import json, os, sys
from pathlib import Path
from pliant.api.compile_onnx import compile
from pliant.api.open_session import open as open_session
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.system import cpu_quota
from pliant.settings import thread_count
if sys.argv[1] == "affinity":
    os.sched_setaffinity(0, {int(sys.argv[2])})
elif sys.argv[1] == "group":
    Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
session = compile(Path(sys.argv[3]).read_bytes())
print(json.dumps([thread_count(), SessionOptions(1.0).n_threads, repr(session), cpu_quota()]))
"""


def _counted(model: Path, cache: Path, *how: object) -> list[object]:
    command = [sys.executable, "-c", _COUNT, *map(str, how), str(model)]
    environment = {**os.environ, "PLIANT_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model of one product."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { y = MatMul(x, w) }"""
    )
    path = tmp_path_factory.mktemp("onnx") / "product.onnx"
    onnx.save(model, path)
    return path


def test_every_session_keeps_to_the_affinity(add: Path, cache: Path) -> None:
    """`taskset` is how operators share a machine; compiled models took all of its cores before."""
    count, options, session, _ = _counted(add, cache, "affinity", CPUS[0])
    assert (count, options) == (1, 1)
    assert "1 threads" in str(session)


@contextmanager
def _group_of_one_and_a_half_cores() -> Iterator[Cgroup]:
    hierarchy = find_hierarchy("cpu")
    if hierarchy is None:
        pytest.skip("this process may not make control groups")
    group = make_group(hierarchy, f"pliant-settings-{os.getpid()}")
    try:
        if group.version == 1:
            (group.path / "cpu.cfs_quota_us").write_text("150000")
        else:
            (group.path / "cpu.max").write_text("150000 100000")
        yield group
    finally:
        remove_group(group)


def test_every_session_keeps_to_a_real_quota(add: Path, cache: Path) -> None:
    """What a container limited to 1.5 cores finds, on this kernel's own files."""
    with _group_of_one_and_a_half_cores() as group:
        count, options, session, quota = _counted(add, cache, "group", group.path)
    assert quota == 1.5
    assert (count, options) == (1, 1)
    assert "1 threads" in str(session)


def _objects(cache: Path) -> set[Path]:
    return set(cache.rglob("*.o"))


def test_all_kinds_of_sessions_share_their_kernels(
    tiny_model: Callable[..., Path], add: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[cache] A node, a cluster and a session compiled everything anew, each into a folder of its own."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("PLIANT_CACHE", str(cache))
    directory = tiny_model()

    def compiled() -> None:
        pliant.compile(add, threads=1).close()

    def recurrent() -> None:
        pliant.open("imdb-lstm", threads=1).close()

    def elastic() -> None:
        store = build(open_checkpoint(directory), tmp_path / "store", overwrite=True)
        with open_store(store) as opened, Engine(opened, n_threads=1):
            pass

    def clustered() -> None:
        make_key(tmp_path / "key")
        with Cluster("127.0.0.1:0", key=tmp_path / "key", threads=1, shares="equal") as cluster:
            cluster.open(directory).alone("a good film")

    def served() -> None:
        for source in (str(add), "imdb-lstm"):
            open_endpoint(source, threads=2).close()  # other threads: another library

    made = []
    for opened in (compiled, recurrent, elastic, clustered, served):
        before = _objects(cache)
        opened()
        assert {path.parent for path in _objects(cache)} == {cache / "kernels"}
        made.append(len(_objects(cache) - before))
    *kinds, node = made
    assert all(kinds), "each kind has kernels of its own"
    assert node == 0
