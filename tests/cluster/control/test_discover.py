"""Primaries announced by multicast DNS on loopback, found by whoever holds their key."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.discover import announced, discovered
from pliant.cluster.net.key import make_key, new_key
from pliant.errors import MulticastError
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, small_model

_WAIT_S = 30.0


@contextmanager
def _multicast() -> Iterator[None]:
    """Skips where loopback carries no multicast."""
    key, found = new_key(), Queue[str]()
    try:
        with announced("probe", "127.0.0.1:9", key), discovered(key, found.put):
            found.get(timeout=_WAIT_S)
    except (MulticastError, Empty) as error:
        pytest.skip(f"no multicast on loopback: {error!r}")
    yield


def test_a_primary_is_found_by_its_key_and_by_no_other() -> None:
    """Two clusters in one house must not knock at each other's doors."""
    with _multicast():
        mine, theirs = new_key(), new_key()
        found, others = Queue[str](), Queue[str]()
        with (
            discovered(mine, found.put),
            discovered(theirs, others.put),
            announced("primary", "127.0.0.1:29555", mine),
            announced("primary", "127.0.0.1:29556", theirs),  # of one name, as all are unless told
        ):
            assert found.get(timeout=_WAIT_S) == "127.0.0.1:29555"
            assert others.get(timeout=_WAIT_S) == "127.0.0.1:29556"
        assert set(found.queue) <= {"127.0.0.1:29555"}
        assert set(others.queue) <= {"127.0.0.1:29556"}


def test_a_worker_without_an_address_joins_the_primary_that_announces_itself(tmp_path: Path) -> None:
    """The whole way, by command line; the key is needed as ever."""
    with _multicast():
        key, model = tmp_path / "key", small_model(tmp_path)
        make_key(key)
        worker = WorkerProcess("w", None, key, model, tmp_path, "--discover")
        try:
            with Cluster(
                "127.0.0.1:0", key=key, threads=1, shares="equal", announce=True, patience=PATIENT
            ) as cluster:
                cluster.wait(1, WAIT_S)
                session = cluster.open(model)
                details = session(session.sample(20)).details
                assert details.partitions[-1].participants == (cluster.name, "w")
        finally:
            worker.kill()
        assert "looks for primaries" in worker.text()


def test_without_zeroconf_the_extra_is_named() -> None:
    """It is no dependency of the cluster."""
    script = "import sys; sys.modules['zeroconf'] = None; import pliant.cluster.control.discover"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'pliant[discover]'" in done.stderr
