"""Primaries announced by multicast DNS on loopback, found by whoever holds their key."""

import subprocess
import sys
from pathlib import Path
from queue import Queue

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.discover_primaries import announce_primary, discover_primaries
from pliant.cluster.net.key import make_key, new_key
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, small_model
from tests.multicast import multicast as multicast

_WAIT_S = 30.0


def test_a_primary_is_found_by_its_key_and_by_no_other(multicast: None) -> None:
    """Two clusters in one house must not knock at each other's doors."""
    mine, theirs = new_key(), new_key()
    found, others = Queue[str](), Queue[str]()
    with (
        discover_primaries(mine, found.put),
        discover_primaries(theirs, others.put),
        announce_primary("primary", "127.0.0.1:29555", mine),
        announce_primary("primary", "127.0.0.1:29556", theirs),  # of one name, as all are unless told
    ):
        assert found.get(timeout=_WAIT_S) == "127.0.0.1:29555"
        assert others.get(timeout=_WAIT_S) == "127.0.0.1:29556"
    assert set(found.queue) <= {"127.0.0.1:29555"}
    assert set(others.queue) <= {"127.0.0.1:29556"}


def test_a_worker_without_an_address_joins_the_primary_that_announces_itself(
    tmp_path: Path, multicast: None
) -> None:
    """The whole way, by command line; the key is needed as ever."""
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
    script = "import sys; sys.modules['zeroconf'] = None; import pliant.cluster.control.discover_primaries"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'pliant[discover]'" in done.stderr
