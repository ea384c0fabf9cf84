"""The engines that the conformance suite of comm runs on: each makes members that know each other."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from pliant.cluster.net.comm import Comm
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import new_key

Members = Callable[[Sequence[str]], dict[str, Comm]]


@contextmanager
def memory() -> Iterator[Members]:
    network = MemoryNetwork()
    made: list[Comm] = []

    def members(names: Sequence[str]) -> dict[str, Comm]:
        joined: dict[str, Comm] = {name: network.join(name) for name in names}
        made.extend(joined.values())
        return joined

    yield members
    for comm in made:
        comm.close()


@contextmanager
def zeromq() -> Iterator[Members]:
    key = new_key()
    made: dict[str, ZmqComm] = {}
    closed: list[ZmqComm] = []

    def members(names: Sequence[str]) -> dict[str, Comm]:
        new = {name: ZmqComm(name, key) for name in names}
        closed.extend(made[name] for name in made.keys() & new.keys())
        made.update(new)
        for name, comm in made.items():
            for peer in made.keys() - {name}:
                if name in new or peer in new:
                    comm.connect(peer, made[peer].address)
        return dict(new)

    yield members
    for comm in (*made.values(), *closed):
        comm.close()


@contextmanager
def gloo() -> Iterator[Members]:
    """Whoever is made later forms a new group with those who are still there."""
    pytest.importorskip("torch", reason="torch is not installed")
    made: dict[str, GlooComm] = {}
    closed: list[GlooComm] = []
    with tempfile.TemporaryDirectory() as folder:

        def members(names: Sequence[str]) -> dict[str, Comm]:
            new = {name: GlooComm(name) for name in names}
            closed.extend(made[name] for name in made.keys() & new.keys())
            made.update(new)
            rendezvous = f"file://{folder}/{len(os.listdir(folder))}"
            with ThreadPoolExecutor(len(made)) as pool:
                for formed in [pool.submit(c.form, tuple(made), rendezvous) for c in made.values()]:
                    formed.result()
            return dict(new)

        yield members
        for comm in (*made.values(), *closed):
            comm.close()


ENGINES = {"memory": memory, "zeromq": zeromq, "gloo": gloo}
