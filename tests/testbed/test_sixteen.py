"""Sixteen workers, each a process on a device of its own: the largest cluster that is run, not simulated."""

import json
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pliant.cluster.key import make_key
from pliant.cluster.meet import PORT
from pliant.cluster.patience import Patience
from pliant.clustered import Cluster, ClusterReply
from pliant.ir.partition import Mode
from testbed import DeviceSpec, Network, why_not
from testbed.hepti import start_worker
from testbed.inside import inside
from tests.cluster.processes import CONFIG

_N_WORKERS = 16
_TOKENS = 40
_CONFIG = CONFIG | {
    "hidden_size": 136,
    "num_attention_heads": 17,
    "intermediate_size": 255,
    "num_hidden_layers": 3,
}
_PATIENCE = Patience(silence_s=5.0, least_s=15.0)  # seventeen processes on two cores take turns
_WAIT_S = 240.0


def _whole(cluster: Cluster, model: str, feeds: dict[str, np.ndarray], n_workers: int) -> ClusterReply:
    """A run that so many workers were in to the end: some may miss a turn where cores are few."""
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s:
        cluster.wait(n_workers, _WAIT_S)
        reply = cluster.run(model, feeds)
        if len(reply.partitions[-1].participants) == n_workers + 1 and not reply.faults:
            return reply
    raise AssertionError(f"not all take part: {cluster.status()}")


@pytest.mark.slow
def test_sixteen_workers_answer_as_one_device_in_every_mode_and_when_one_dies(
    tmp_path: Path,
) -> None:
    """Shares of one head and a few rows or columns, a grid of four by four, 240 connections; a worker dies in
    the second mode, and another in the third, whose fifteen devices are another grid."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    rng = random.Random(16)
    names = [f"w{i}" for i in range(_N_WORKERS)]
    config = tmp_path / "model.json"
    config.write_text(json.dumps(_CONFIG))
    model = f"random:{config}"
    make_key(tmp_path / "cluster.key")
    with ExitStack() as ends:
        paces = [DeviceSpec(name, slower=rng.choice((1.0, 2.0, 4.0))) for name in names]
        net = ends.enter_context(Network([DeviceSpec("alpha"), *paces]))
        ends.enter_context(inside(net["alpha"]))
        for name in names:
            start_worker(net[name], net["alpha"].address, model, tmp_path, silence_s=_PATIENCE.silence_s)
        modes: tuple[Mode, ...] = ("ws", "1d", "2d")
        for mode in modes:
            with Cluster(
                f"{net['alpha'].address}:{PORT}", key=tmp_path / "cluster.key", name="alpha", threads=1,
                mode=mode, shares="equal", adapt=False, patience=_PATIENCE,
            ) as cluster:  # fmt: skip
                feeds = dict(cluster.sample(model, _TOKENS))
                alone = cluster.run(model, feeds, is_alone=True).answer
                reply = _whole(cluster, model, feeds, len(names))
                assert reply.mode == mode
                np.testing.assert_allclose(reply.answer, alone, atol=1e-4)
                if mode != "ws":
                    victim = names.pop(rng.randrange(len(names)))
                    dies = threading.Timer(reply.seconds / 2, net[victim].kill)
                    dies.start()
                    reply = cluster.run(model, feeds)
                    dies.join()
                    np.testing.assert_allclose(reply.answer, alone, atol=1e-4)
                    after = _whole(cluster, model, feeds, len(names))
                    assert victim not in after.partitions[-1].participants
                    np.testing.assert_allclose(after.answer, alone, atol=1e-4)
