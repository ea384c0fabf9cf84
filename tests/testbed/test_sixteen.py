"""Sixteen workers, each a process on a device of its own: the largest cluster that is run, not simulated."""

import json
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.net.connect_members import PORT
from pliant.cluster.net.key import make_key
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.ir.capability import Capability, Links
from pliant.ir.partition import Mode, Partition
from pliant.ir.reply import Reply
from pliant.models.encoder.encoder_spec import EncoderSpec
from testbed import DeviceSpec, Network, why_not
from testbed.hepti import start_worker
from testbed.inside import inside
from tests.cluster.boundaries import Act, at_boundaries
from tests.cluster.processes import CONFIG

pytestmark = pytest.mark.slow

_N_WORKERS = 16
_MODES: dict[int, Mode] = {40: "ws", 39: "1d", 38: "2d"}
"""By the number of tokens."""
_CONFIG = CONFIG | {
    "hidden_size": 136,
    "num_attention_heads": 17,
    "intermediate_size": 255,
    "num_hidden_layers": 2,
}
_PATIENCE = ClusterTimeouts(silence_s=5.0, least_s=15.0)  # seventeen processes on two cores take turns
_WAIT_S = 240.0


def _whole(
    cluster: Cluster, session: ClusterSession, feeds: dict[str, np.ndarray], n_workers: int
) -> Reply[ClusterDetails]:
    """A run that so many workers were in to the end: some may miss a turn where cores are few."""
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s:
        cluster.wait(n_workers, _WAIT_S)
        reply = session(feeds)
        if len(reply.details.partitions[-1].participants) == n_workers + 1 and not reply.details.faults:
            return reply
    raise AssertionError(f"not all take part: {cluster.status()}")


@pytest.fixture
def by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are equal; the mode follows from the number of tokens, so that one cluster runs all three."""
    monkeypatch.setattr("pliant.api.open_cluster.make_chooser", lambda *asked: _by_tokens)


def _by_tokens(
    spec: EncoderSpec, tokens: int, capabilities: Mapping[str, Capability], links: Links, primary: str
) -> Partition:
    return make_chooser(_MODES[tokens], "equal")(spec, tokens, capabilities, links, primary)


@pytest.mark.usefixtures("by_tokens")
def test_sixteen_workers_answer_as_one_device_in_every_mode_and_when_one_dies(tmp_path: Path) -> None:
    """Shares of one head and a few rows or columns, 240 connections; a worker dies within the second mode,
    and the sixteen devices that are left are a grid of four by four in the third."""
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
        cluster = ends.enter_context(
            Cluster(
                f"{net['alpha'].address}:{PORT}", key=tmp_path / "cluster.key", name="alpha", threads=1,
                shares="equal", adapt=False, patience=_PATIENCE,
            )
        )  # fmt: skip
        for n_before, name in enumerate(names):
            if n_before == 1:  # the first has compiled what the others read
                cluster.wait(1, _WAIT_S)
            silence_s = _PATIENCE.silence_s
            start_worker(net[name], net["alpha"].address, model, tmp_path, silence_s=silence_s)
        session = cluster.open(model)
        for tokens, mode in _MODES.items():
            feeds = session.sample(tokens)
            alone = session.alone(feeds).outputs["vector"]
            reply = _whole(cluster, session, feeds, len(names))
            assert reply.details.mode == mode
            np.testing.assert_allclose(reply.outputs["vector"], alone, atol=1e-4)
            if mode == "1d":
                victim = names.pop(rng.randrange(len(names)))
                with at_boundaries(cluster, Act(2, mode, net[victim].kill)):
                    reply = session(feeds)
                assert reply.details.faults
                assert victim not in reply.details.partitions[-1].participants
                np.testing.assert_allclose(reply.outputs["vector"], alone, atol=1e-4)
