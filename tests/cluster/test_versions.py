"""Workers of another release, as real processes: named on both sides, and nobody waits for them for ever."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.cluster.key import make_key
from pliant.clustered import Cluster
from pliant.errors import ClusterError
from tests.cluster.processes import MAIN, PATIENT, WAIT_S, command, small_model, workers

_OTHER = {
    "release": "import pliant; pliant.__version__ = '0.0.7'; ",
    "messages": "import pliant.cluster.messages as m; m.PROTOCOL = 7; ",
    "letters": "import pliant.cluster.letter as m; m.VERSION = 7; ",
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
        _until(lambda: re.search(r"\d.*version|\d, the primary", log.read_text()) is not None)
        with pytest.raises(ClusterError, match=r"1 of 2 workers .* a\. Turned away: ") as refused:
            cluster.wait(2, 0.5)
        versions = r"0\.0\.7, the primary \d+\.\d+" if which == "release" else r"version 7\D.*version 1\D"
        assert re.search(rf"\bold\b.*{versions}", str(refused.value))
        reply = cluster.run(model, cluster.sample(model, 20))
        assert reply.partitions[-1].participants == ("primary", "a")
        assert not reply.faults
        old.send_signal(signal.SIGINT)
        assert old.wait(WAIT_S) == 0
    said = log.read_text()
    assert re.search(r"0\.0\.7, the primary" if which == "release" else r"version 1\D.*version 7\D", said)
    assert said.count("version") <= 2, "once is enough"
