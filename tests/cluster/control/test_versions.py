"""Members of other versions: neighbours work together, others are named on both sides."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.control import messages
from pliant.cluster.control.messages import Hello
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.net.key import make_key
from pliant.cluster.session.cluster_batches import packed_rows
from pliant.errors import ClusterError
from pliant.ir.envelope import VERSION
from tests.cluster.fakes import FakeCluster
from tests.cluster.hostile import stranger
from tests.cluster.processes import MAIN, PATIENT, WAIT_S, command, small_model, workers
from tests.fixtures.formats.versions import released

_OTHER = "import pliant.ir.envelope as m; m.VERSION = 7; "


@contextmanager
def _old(join: str, key: Path, model: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker `old` that another version of pliant would be."""
    python, flag, _, *words = command("worker", "--join", join, "--name", "old", "--key", str(key))
    with log.open("ab") as said:
        process = subprocess.Popen(
            [python, flag, _OTHER + MAIN, *words, "--model", model, "--threads", "1",
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


def test_a_worker_of_another_version_is_refused_with_name_and_versions(tmp_path: Path) -> None:
    """Whoever forgot a device when updating learns which one, at the primary and at the device; the others
    work on without it."""
    key, log, model, events = tmp_path / "key", tmp_path / "old.log", small_model(tmp_path), list[str]()
    make_key(key)
    with (
        Cluster(
            "127.0.0.1:0", key=key, threads=1, shares="equal", on_event=events.append, patience=PATIENT
        ) as cluster,
        _old(cluster.address, key, model, log) as old,
        workers(cluster.address, key, model, tmp_path, "a"),
    ):
        cluster.wait(1, WAIT_S)
        _until(lambda: re.search(r"\d.*version", log.read_text()) is not None)
        with pytest.raises(ClusterError, match=r"1 of 2 workers .* a\. Refused: ") as refused:
            cluster.wait(2, 0.5)
        both = rf"'old' speaks version 7 of the protocol, this device version {VERSION}: .* Install the same"
        assert re.search(both, str(refused.value))
        session = cluster.open(model)
        details = session(session.sample(20)).details
        assert details.partitions[-1].participants == (cluster.name, "a")
        assert not details.faults
        old.send_signal(signal.SIGINT)
        assert old.wait(WAIT_S) == 0
    said = log.read_text()
    assert re.search(both, said)
    assert len(re.findall(r"version \d", said)) <= 2, "once is enough"


def _next(data: bytes) -> bytes:
    """A control message as the next version would send it: its number, and more fields at the ends."""
    _, sender, incarnation, body = msgspec.msgpack.decode(data)
    more = ("appended", {"also": 1})
    return msgspec.msgpack.encode([VERSION + 1, sender, incarnation, [*body, *more], *more])


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_cluster_of_two_neighbouring_versions_answers(version: int) -> None:
    """An update rolls through a cluster device by device; meanwhile every run must be answered."""
    with FakeCluster() as cluster:
        cluster.add("same")
        if version > VERSION:
            cluster.wires.rewrite["other"] = _next
        else:
            cluster.wires.versions["other"] = version
        machine = cluster.add("other")
        cluster.primary.wait_for(2, 10.0)
        if version > VERSION:
            machine.control.post("p", msgspec.msgpack.encode([version, "other", 0, ["Invented", 1]]))
        for seed in range(2):
            answer, wanted, led = cluster.run(seed=seed)
            np.testing.assert_allclose(answer, wanted, atol=1e-5)
            assert isinstance(led, RunRecord)
            assert set(led.plans[0].partition.participants) == {"p", "same", "other"}
            assert not led.faults


def _earlier(data: bytes) -> bytes:
    """A control message without the fields that were appended since the envelope: those with a default."""
    version, sender, incarnation, (kind, *values) = msgspec.msgpack.decode(data)
    kinds = {one.__struct_config__.tag: one for one in get_args(messages.AnyMessage)}
    fields = msgspec.structs.fields(kinds[kind])
    n_kept = sum(field.required for field in fields)
    assert all(field.required for field in fields[:n_kept]), "what is appended stands last"
    return msgspec.msgpack.encode([version, sender, incarnation, [kind, *values[:n_kept]]])


@pytest.mark.parametrize("rewrite", [_earlier, _next])
@pytest.mark.parametrize("member", ["p", "other"])
def test_a_cluster_answers_where_one_member_has_fewer_or_more_fields(
    member: str, rewrite: Callable[[bytes], bytes]
) -> None:
    """The primary `p` is updated first, or last."""
    with FakeCluster() as cluster:
        cluster.wires.rewrite[member] = rewrite
        cluster.add("other")
        cluster.primary.wait_for(1, 10.0)
        answer, wanted, led = cluster.run(seed=0)
        np.testing.assert_allclose(answer, wanted, atol=1e-5)
        assert isinstance(led, RunRecord)
        assert set(led.plans[0].partition.participants) == {"p", "other"}
        assert not led.faults


def test_texts_run_together_without_a_member_that_takes_one_at_a_time() -> None:
    """A worker of the release before would let texts attend to each other; also one that joins during a run,
    by the plan that the run would change to."""
    lengths = (5, 1, 9, 4)
    with FakeCluster() as cluster:
        cluster.add("same")
        cluster.wires.rewrite["other"] = _earlier
        cluster.add("other")
        cluster.primary.wait_for(2, 10.0)
        rows = packed_rows(lengths, cluster.spec.max_rows)
        with_all = cluster.steer.begin(cluster.source, rows, ())
        assert set(with_all.partition.participants) == {"p", "same", "other"}
        for cluster.steer.switches in ({}, {3: with_all}):
            answer, wanted, led = cluster.run(*lengths)
            np.testing.assert_allclose(answer, wanted, atol=1e-5)
            assert isinstance(led, RunRecord)
            assert {name for plan in led.plans for name in plan.partition.participants} == {"p", "same"}
            assert not led.faults
        cluster.steer.switches = {}
        _, _, led = cluster.run(19)
        assert isinstance(led, RunRecord)
        assert "other" in led.plans[0].partition.participants


def _sent_by_the_version_before() -> dict[str, bytes]:
    """The bytes of the last commit of protocol 2, by name."""
    kept = json.loads(released("messages.json")["v0_1_protocol_2"].read_text())
    return {name: bytes.fromhex(text) for name, text in kept.items()}


def test_a_primary_takes_in_a_worker_by_the_very_bytes_of_the_version_before(tmp_path: Path) -> None:
    """They were recorded: no code of today has a part in them. It is answered in letters, which it reads."""
    sent, key = _sent_by_the_version_before(), make_key(tmp_path / "key")
    beat = sent["cluster letter BEAT"].removesuffix(b"body")
    word = sent["cluster letter WORD"].removesuffix(b"body")
    with (
        Cluster("127.0.0.1:0", key=tmp_path / "key", threads=1, patience=PATIENT) as cluster,
        stranger(key, cluster.address) as socket,
    ):
        socket.send(beat)
        greeting = socket.recv()
        assert greeting[:6] == beat[:6], "a heartbeat in a letter"
        socket.send(word + sent["cluster Hello"].replace(b"gloo", b"zmq").replace(b"\xa4zmq", b"\xa3zmq"))
        while (answer := socket.recv()) == greeting:
            pass
        words = sent["cluster Welcome"]
        assert answer[:6] == word[:6]
        assert words[:10] in answer
        (member,) = cluster.status()
        assert (member.name, member.reason, member.version) == ("ada", None, "0.1.0")
        socket.send(sent["cluster letter BYE"])
        _until(lambda: cluster.status()[0].reason == "not heard")


def test_a_worker_of_another_release_is_taken_in_by_its_protocol() -> None:
    """Releases differ more often than what members tell each other."""
    with FakeCluster() as cluster:
        hello = Hello("0.0.7", "", 1, 10**9, ("made-up",))
        cluster.primary.handle_message("old", hello)
        (member,) = cluster.primary.status().members
        assert (member.name, member.version, member.reason) == ("old", "0.0.7", None)
