"""What the process that torch.distributed lives in may do to its member: die, never meet, be left behind."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pliant.cluster.net.comm import Tag
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.errors import ClusterError, PeerLostError

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow  # each process imports torch

PATIENT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[GlooComm, GlooComm]]:
    with GlooComm("ada") as ada, GlooComm("bob") as bob:
        yield ada, bob


def _form(pair: tuple[GlooComm, GlooComm], rendezvous: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for formed in [pool.submit(c.form, ("ada", "bob"), f"file://{rendezvous}", 300.0) for c in pair]:
            formed.result()


def _exchange(src: GlooComm, dst: GlooComm, epoch: int) -> None:
    got = np.zeros(1000, np.float32)
    src.send(dst.name, Tag(epoch, 0, 0), np.ones(1000, np.float32))
    dst.receive(src.name, Tag(epoch, 0, 0), got, PATIENT_S)
    assert (got == 1).all()


def test_a_child_that_dies_is_a_lost_peer_and_a_new_group_goes_on(
    pair: tuple[GlooComm, GlooComm], tmp_path: Path
) -> None:
    """Gloo ends its process on errors of others; the member must live, and hear of it at once."""
    ada, bob = pair
    _form(pair, tmp_path / "first")
    _exchange(ada, bob, 0)
    assert bob.group_process is not None
    os.kill(bob.group_process, signal.SIGKILL)
    for comm, peer, why in ((ada, "bob", "has left, died or was cut off"), (bob, "ada", r"ended \(-9\)")):
        with pytest.raises(PeerLostError, match=why) as caught:
            comm.receive(peer, Tag(0, 0, 1), np.zeros(1), 10 * PATIENT_S)
        assert caught.value.peer == peer
        with pytest.raises(PeerLostError):
            comm.send(peer, Tag(0, 0, 2), np.zeros(1))
        comm.drop(0)
    _form(pair, tmp_path / "second")
    _exchange(ada, bob, 1)
    _exchange(bob, ada, 1)


def test_a_frozen_child_holds_up_neither_receiver_nor_sender_for_ever(tmp_path: Path) -> None:
    """And what is sent to it does not pile up in memory."""
    with GlooComm("ada", send_timeout_s=1.0) as ada, GlooComm("bob") as bob:
        _form((ada, bob), tmp_path / "meet")
        assert bob.group_process is not None
        os.kill(bob.group_process, signal.SIGSTOP)
        with pytest.raises(PeerLostError, match=r"waited 0.3 s"):
            ada.receive("bob", Tag(0, 0, 0), np.zeros(1), 0.3)
        big, steps = np.zeros(16 << 20, np.uint8), iter(range(50))
        with pytest.raises(PeerLostError, match="took nothing for 1 s"):
            [ada.send("bob", Tag(0, 0, step), big) for step in steps]
        assert next(steps) < 20


def test_a_group_that_does_not_meet_is_given_up(tmp_path: Path) -> None:
    """A member that died before it came must not hold up the next epoch."""
    with GlooComm("ada") as ada:
        with pytest.raises(
            ClusterError, match=r"could not form a group of ada, bob: not all came within 0.5 s"
        ):
            ada.form(("ada", "bob"), f"file://{tmp_path}/meet", timeout_s=0.5)
        with pytest.raises(ClusterError, match="there is no member bob"):
            ada.send("bob", Tag(0, 0, 0), np.zeros(1))


def test_a_child_that_cannot_begin_says_why() -> None:
    """An address that nobody can meet at is the commonest reason."""
    with GlooComm("ada") as ada, pytest.raises(ClusterError, match="its process ended"):
        ada.form(("ada", "bob"), "nonsense://", timeout_s=300.0)


@pytest.mark.parametrize("members", [("bob",), ("ada", "ada")])
def test_a_group_without_this_member_or_with_one_twice_is_refused(members: tuple[str, ...]) -> None:
    """Ranks are places in that sequence."""
    with GlooComm("ada") as ada, pytest.raises(ClusterError, match="cannot form a group"):
        ada.form(members, "file:///nowhere")
