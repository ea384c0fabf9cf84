"""Workers that are started anew, and primaries that come one after another."""

from functools import partial
from pathlib import Path

import numpy as np

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import make_key
from tests.cluster.ports import unused_ports
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, small_model, workers


def test_a_worker_started_anew_is_in_the_next_run_without_a_fault(tmp_path: Path) -> None:
    """The plan that was held ready lay in the process that died, and its address was that process's."""
    key = tmp_path / "key"
    make_key(key)
    model = small_model(tmp_path)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", patience=PATIENT) as cluster,
        workers(cluster.address, key, model, tmp_path) as found,
    ):
        cluster.wait(2, WAIT_S)
        session = cluster.open(model)
        feeds = session.sample(20)
        before = session(feeds)
        assert not before.details.faults
        found["b"].kill()
        found["b"] = WorkerProcess("b", cluster.address, key, model, tmp_path, "--threads", "1")
        session(feeds)  # misses the old process, or has missed it
        cluster.wait(2, WAIT_S)
        after = session(feeds)
        assert set(after.details.partitions[-1].participants) == {cluster.name, "a", "b"}
        assert not after.details.faults
        np.testing.assert_allclose(after.outputs["vector"], before.outputs["vector"], atol=1e-4)


def test_a_worker_serves_one_primary_after_another(tmp_path: Path) -> None:
    """`pliant cluster run` is a new primary each time, which counts its epochs from the start: what came of
    epochs that were over with the last one must not be dropped."""
    key = tmp_path / "key"
    make_key(key)
    model = small_model(tmp_path)
    primary = partial(Cluster, key=key, threads=1, shares="equal", measure=True, patience=PATIENT)
    address = f"127.0.0.1:{unused_ports(1)[0]}"
    with primary(address) as first, workers(address, key, model, tmp_path, "a"):
        first.wait(1, WAIT_S)
        session = first.open(model)
        feeds = session.sample(20)
        answers = [session(feeds).outputs["vector"] for _ in range(3)]
        first.close()
        for _ in range(2):
            with primary(address) as again:
                again.wait(1, WAIT_S)
                reply = again.open(model)(feeds)
                assert set(reply.details.partitions[-1].participants) == {again.name, "a"}
                assert not reply.details.faults
                np.testing.assert_allclose(reply.outputs["vector"], answers[0], atol=1e-4)
