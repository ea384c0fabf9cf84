"""Faults at random moments over real processes on loopback: every run ends, with the right answer."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.control_frame import pack_first_heartbeat
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.net.key import Key, make_key, read_key
from pliant.ir.dilation import Dilation
from tests.cluster.boundaries import Act, at_boundaries
from tests.cluster.hostile import stranger
from tests.cluster.processes import WAIT_S, WorkerProcess, small_model, workers

pytestmark = pytest.mark.alone

TOLERANCE = 1e-4
PATIENCE = ClusterTimeouts(silence_s=0.5, least_s=1.0)
TOKENS = 24
N_FAULTS = 20
KINDS = ("kill", "freeze", "garbage", "thaw late")
SLOWER = 10.0  # stretches a run to where faults find it inside of layers


@pytest.fixture
def key(tmp_path: Path) -> Key:
    make_key(tmp_path / "key")
    return read_key(tmp_path / "key")


@pytest.fixture
def cluster(key: Key) -> Iterator[Cluster]:
    with Cluster(
        "127.0.0.1:0", key=key, threads=1, shares="equal", dilation=Dilation(SLOWER), patience=PATIENCE
    ) as made:
        yield made


def garbage(key: Key, cluster: Cluster, name: str) -> None:
    """A member that holds the key and sends what is no message."""
    with stranger(key, cluster.address) as socket:
        socket.send(pack_first_heartbeat(name, random.getrandbits(64)))
        for _ in range(3):
            socket.send(random.randbytes(50))


def inflict(kind: str, worker: WorkerProcess, key: Key, cluster: Cluster, number: int) -> None:
    match kind:
        case "kill":
            worker.kill()
        case "freeze":
            worker.freeze()
        case "garbage":
            garbage(key, cluster, f"liar{number}")
        case "thaw late":
            worker.freeze()
            time.sleep(0.25)  # less than a silence: the run may go on with it
            worker.thaw()


@pytest.mark.slow
def test_twenty_faults_and_twenty_right_answers(cluster: Cluster, key: Key, tmp_path: Path) -> None:
    """Killed, frozen or lying members cost time, never the answer; whoever returns is taken in again."""
    model = small_model(tmp_path)
    session = cluster.open(model)
    feeds = session.sample(TOKENS)
    rng = random.Random(0)
    n_noticed = n_returned = 0
    slow = ("--dilate-compute", str(SLOWER))
    with workers(cluster.address, tmp_path / "key", model, tmp_path, "abc", *slow) as found:
        cluster.wait(3, WAIT_S)
        alone = session.alone(feeds).outputs["vector"]
        for number in range(N_FAULTS):
            cluster.wait(2 if number % 5 else 3, WAIT_S)
            before = session(feeds)
            n_returned += len(before.details.partitions[-1].participants) == 4
            np.testing.assert_allclose(before.outputs["vector"], alone, atol=TOLERANCE)
            worker, kind = found[rng.choice("abc")], rng.choice(KINDS)
            # Every other one strikes at a boundary, with layers to go; the others at any moment after one.
            after_s = rng.choice((0.0, rng.uniform(0.0, 0.03)))
            timer = threading.Timer(after_s, inflict, (kind, worker, key, cluster, number))

            def strike(timer: threading.Timer = timer, is_done_first: bool = not after_s) -> None:
                timer.start()
                if is_done_first:
                    timer.join()

            with at_boundaries(cluster, Act(rng.randrange(1, 6), "ws", strike)):
                reply = session(feeds)
            timer.join()
            np.testing.assert_allclose(
                reply.outputs["vector"], alone, atol=TOLERANCE, err_msg=f"{number}: {kind}"
            )
            n_noticed += bool(reply.details.faults)
            worker.thaw()
            if worker.process.poll() is not None:
                again = (cluster.address, tmp_path / "key", model, tmp_path, "--threads", "1", *slow)
                found[worker.name] = WorkerProcess(worker.name, *again)
    assert n_noticed >= 3, "no fault fell into a run"
    assert n_returned >= 3, "who failed was not taken in again"
