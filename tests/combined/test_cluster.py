"""A cluster's session asked by many threads while workers die, join and are watched, until it is closed."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import make_key
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.errors import InputError
from pliant.ir.reply import Reply
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, workers
from tests.cluster.test_clustered import TOLERANCE
from tests.combined.crowd import crowd
from tests.combined.test_shared_session import endlessly

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N_THREADS, N_BEFORE, N_AFTER = 16, 2, 2
TEXTS = (
    "good",
    "the story was not good",
    "a bad plot and a good actor but no film",
    "no film no plot no story",
)
CLOSED = "this (session|cluster) is closed"
Given = tuple[str, Reply[ClusterDetails]]


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("bert"))


@pytest.fixture
def cluster(kernel_cache: Path, tmp_path: Path) -> Iterator[Cluster]:
    key = tmp_path / "key"
    make_key(key)
    with Cluster(
        "127.0.0.1:0", key=key, threads=1, shares="equal", patience=PATIENT, cache=kernel_cache
    ) as made:
        yield made


def asked(session: ClusterSession, n: int) -> list[Given]:
    """A text, or several in a list."""
    texts = [TEXTS[(n + i) % len(TEXTS)] for i in range(3)]
    if n % 3:
        return [(texts[0], session(texts[0]))]
    return list(zip(texts, session(texts), strict=True))


def look(session: ClusterSession, n: int) -> None:
    """What an operator reads at any time."""
    assert session.memory.measured_bytes >= 0
    assert str(session.plan)
    if n == 0:
        assert str(session.explain(8))
        assert session.profile({"ids": np.array([[1, 2, 3]])}, runs=1).median_s > 0


def are_right(given: list[Given], alone: dict[str, Reply[ClusterDetails]]) -> None:
    for text, reply in given:
        want = alone[text]
        assert (reply.length, reply.label) == (want.length, want.label)
        np.testing.assert_allclose(reply.outputs["logits"], want.outputs["logits"], atol=TOLERANCE)


def test_answers_are_those_of_one_device_while_workers_die_and_join_until_it_is_closed(
    cluster: Cluster, model: str, tmp_path: Path
) -> None:
    """No caller gets an error of a worker's death or another's answer; the close is told to every caller."""
    given: list[Given] = []
    arrived, changed, amid = Barrier(N_THREADS + 1), Event(), Event()
    with workers(cluster.address, tmp_path / "key", model, tmp_path) as found:
        cluster.wait(2, WAIT_S)
        session = cluster.open(model)
        alone = {text: session.alone(text) for text in TEXTS}
        # Else one caller's answer would pass for another's.
        logits = np.concatenate([reply.outputs["logits"] for reply in alone.values()])
        gaps = np.abs(logits[:, None] - logits[None]).max(-1) + np.eye(len(TEXTS))
        assert gaps.min() > 10 * TOLERANCE

        def work(first: int) -> None:
            for n in range(first, first + N_BEFORE):
                given.extend(asked(session, n))
                if n == first:
                    arrived.wait(WAIT_S)
            while not changed.is_set():
                given.extend(asked(session, first))
            for n in range(first, first + N_AFTER):
                given.extend(asked(session, n))

        def change() -> None:
            try:
                arrived.wait(WAIT_S)
                found["b"].kill()
                found["c"] = WorkerProcess("c", cluster.address, tmp_path / "key", model, tmp_path)
                session(TEXTS[0])  # misses `b`, or has missed it
                cluster.wait(2, WAIT_S)
            finally:
                changed.set()

        crowd([*(partial(work, first) for first in range(N_THREADS)), change], partial(look, session))
        are_right(given, alone)
        wanted, until_s = {cluster.name, "a", "c"}, time.monotonic() + WAIT_S
        while set(session(TEXTS[0]).details.partitions[-1].participants) != wanted:
            assert time.monotonic() < until_s, cluster.status()

        late: list[Given] = []

        def ask_late(first: int, _: int) -> None:
            late.extend(asked(session, first))
            if len(late) > N_THREADS:
                amid.set()

        def until_closed(first: int) -> None:
            with pytest.raises(InputError, match=CLOSED):
                endlessly(partial(ask_late, first))

        def look_until_closed() -> None:
            with pytest.raises(InputError, match=CLOSED):
                endlessly(partial(look, session))

        def close() -> None:
            assert amid.wait(WAIT_S)
            cluster.close()  # which closes the session first

        crowd([*(partial(until_closed, first) for first in range(N_THREADS)), look_until_closed, close])
        are_right(late, alone)
