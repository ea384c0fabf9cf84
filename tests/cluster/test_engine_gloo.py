"""A cluster of real processes whose activations travel through torch.distributed."""

import time
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import make_key
from pliant.errors import ClusterError
from pliant.ir.dilation import Dilation
from tests.cluster.boundaries import Act, at_boundaries
from tests.cluster.processes import PATIENT, WAIT_S, small_model, workers

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow  # each process imports torch

TOLERANCE = 1e-4
TOKENS = 20
SLOWER = 30.0  # stretches a run to where a fault finds it inside of layers


def test_three_processes_answer_as_one_does_and_survive_a_killed_one(tmp_path: Path) -> None:
    """Links are measured, two runs share a group, and a run goes on in another without the dead."""
    key = tmp_path / "key"
    make_key(key)
    model = small_model(tmp_path)
    slower = ("--dilate-compute", str(SLOWER))
    with (
        Cluster(
            "127.0.0.1:0",
            key=key,
            threads=1,
            engine="gloo",
            shares="equal",
            measure=True,
            dilation=Dilation(SLOWER),
            patience=PATIENT,
        ) as cluster,
        workers(cluster.address, key, model, tmp_path, "ab", "--engine", "gloo", *slower) as found,
    ):
        cluster.wait(2, WAIT_S)
        session = cluster.open(model)
        feeds = session.sample(TOKENS)
        alone = session.alone(feeds)
        for _ in range(2):
            reply = session(feeds)
            assert set(reply.details.partitions[-1].participants) == {cluster.name, "a", "b"}
            assert not reply.details.faults
            np.testing.assert_allclose(reply.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)
        with at_boundaries(cluster, Act(3, "ws", found["b"].kill)):
            struck = session(feeds)
        assert struck.details.faults
        np.testing.assert_allclose(struck.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)
        until_s = time.monotonic() + WAIT_S
        while not {m.name: m for m in cluster.status()}["a"].is_usable and time.monotonic() < until_s:
            time.sleep(0.05)
        after = session(feeds)
        assert set(after.details.partitions[-1].participants) == {cluster.name, "a"}
        np.testing.assert_allclose(after.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


def test_members_of_different_engines_are_told_so(tmp_path: Path) -> None:
    """They would wait for each other's data for ever."""
    key = tmp_path / "key"
    make_key(key)
    model = small_model(tmp_path)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, engine="gloo") as cluster,
        workers(cluster.address, key, model, tmp_path, "z") as found,
    ):
        until_s = time.monotonic() + WAIT_S
        while "give both the same --engine" not in found["z"].text():
            assert time.monotonic() < until_s, found["z"].text()
            time.sleep(0.05)
        with pytest.raises(ClusterError, match="0 of 1 workers"):
            cluster.wait(1, 0.5)
