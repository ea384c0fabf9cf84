"""Members of other versions: neighbours work together, others are named on both sides."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.control.letter import VERSION
from pliant.cluster.control.messages import PROTOCOL, Hello, encode
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.net.key import make_key
from pliant.errors import ClusterError
from tests.cluster.fakes import FakeCluster
from tests.cluster.processes import MAIN, PATIENT, WAIT_S, command, small_model, workers

_OTHER = {
    "messages": "import pliant.cluster.control.messages as m; m.PROTOCOL = 7; ",
    "letters": "import pliant.cluster.control.letter as m; m.VERSION = 7; ",
}


@contextmanager
def _old(which: str, join: str, key: Path, model: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker `old` that another version of pliant would be."""
    python, flag, _, *words = command("worker", "--join", join, "--name", "old", "--key", str(key))
    with log.open("ab") as said:
        process = subprocess.Popen(
            [python, flag, _OTHER[which] + MAIN, *words, "--model", model, "--threads", "1",
             "--silence", "15s"],
            stdout=said, stderr=said, env=os.environ.copy(),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def _until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize("which", _OTHER)
def test_a_worker_of_another_version_is_refused_with_name_and_versions(which: str, tmp_path: Path) -> None:
    """Whoever forgot a device when updating learns which one, at the primary and at the device; the others
    work on without it."""
    key, log, model, events = tmp_path / "key", tmp_path / "old.log", small_model(tmp_path), list[str]()
    make_key(key)
    with (
        Cluster(
            "127.0.0.1:0", key=key, threads=1, shares="equal", on_event=events.append, patience=PATIENT
        ) as cluster,
        _old(which, cluster.address, key, model, log) as old,
        workers(cluster.address, key, model, tmp_path, "a"),
    ):
        cluster.wait(1, WAIT_S)
        _until(lambda: re.search(r"\d.*version", log.read_text()) is not None)
        with pytest.raises(ClusterError, match=r"1 of 2 workers .* a\. Turned away: ") as refused:
            cluster.wait(2, 0.5)
        own = {"messages": PROTOCOL, "letters": VERSION}[which]
        assert re.search(rf"\bold\b.*version 7\D.*version {own}\D", str(refused.value))
        session = cluster.open(model)
        details = session(session.sample(20)).details
        assert details.partitions[-1].participants == (cluster.name, "a")
        assert not details.faults
        old.send_signal(signal.SIGINT)
        assert old.wait(WAIT_S) == 0
    said = log.read_text()
    assert re.search(rf"version {own}\D.*version 7\D", said)
    assert len(re.findall(r"version \d", said)) <= 2, "once is enough"


def _rewritten(version: int, more: tuple[object, ...]) -> Callable[[bytes], bytes]:
    """A control message as another version would send it: its number, and `more` fields at the end."""

    def rewrite(data: bytes) -> bytes:
        fields = msgspec.msgpack.decode(data[1:])
        return bytes((version,)) + msgspec.msgpack.encode([*fields, *more])

    return rewrite


@pytest.mark.parametrize("version", [PROTOCOL - 1, PROTOCOL + 1])
def test_a_cluster_of_two_neighbouring_versions_answers(version: int) -> None:
    """An update rolls through a cluster device by device; meanwhile every run must be answered."""
    more = ("appended", {"also": 1}) if version > PROTOCOL else ()
    with FakeCluster() as cluster:
        cluster.add("same")
        cluster.wires.rewrite["other"] = _rewritten(version, more)
        cluster.add("other")
        cluster.primary.wait_for(2, 10.0)
        if version > PROTOCOL:
            new = bytes((version,)) + msgspec.msgpack.encode(["Invented", 1])
            cluster.control.on_message("other", new)
        for seed in range(2):
            answer, wanted, led = cluster.run(seed=seed)
            np.testing.assert_allclose(answer, wanted, atol=1e-5)
            assert isinstance(led, RunRecord)
            assert set(led.plans[0].partition.participants) == {"p", "same", "other"}
            assert not led.faults


def test_a_worker_of_another_release_is_taken_in_by_its_protocol() -> None:
    """Releases differ more often than what members tell each other."""
    with FakeCluster() as cluster:
        hello = Hello("0.0.7", "", 1, 10**9, ("made-up",))
        cluster.primary.hear("old", encode(hello))
        (member,) = cluster.primary.status().members
        assert (member.name, member.version, member.reason) == ("old", "0.0.7", None)
