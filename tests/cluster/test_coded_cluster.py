"""A cluster whose devices hold a store's codes, as real processes: no one of them could hold the model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import new_key
from pliant.errors import BudgetError
from pliant.ir.partition import Partition, Share
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.plan.split.activation_bytes import activation_bytes
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy
from pliant.store.read import open_store
from pliant.store.store_encoder import open_stored_encoder
from tests.cluster.coded import small_store
from tests.cluster.in_process import run_local
from tests.cluster.processes import PATIENT, WAIT_S, workers
from tests.cluster.test_clustered import write_key

pytestmark = pytest.mark.slow

TOKENS = 12
MEASURED = {6: 0.83, 32: 0.9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coded")


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    """Measured whole in two bitwidths."""
    packed = small_store(folder)
    spec = open_store(packed).spec
    entries = (AccuracyEntry(spec.n_layers, spec.n_heads, bits, MEASURED[bits], -0.5) for bits in MEASURED)
    put_accuracy(packed, AccuracyTable(1000, tuple(entries)))
    return packed


@pytest.fixture(scope="module")
def twelfth(store: Path) -> int:
    """Of the layers in float32, and twice the activations of one device alone."""
    spec = open_stored_encoder(store).spec
    alone = Partition("ws", "a", (Share("a", spec.n_heads, TOKENS),), TOKENS)
    return weight_bytes(spec, alone)["a"] // 12 + 2 * activation_bytes(spec, alone)["a"]


@pytest.fixture(scope="module")
def cluster(folder: Path, store: Path, twelfth: int) -> Iterator[Cluster]:
    key, memory = write_key(folder / "key", new_key()), str(twelfth)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, memory=memory, weights="auto", patience=PATIENT) as made,
        workers(made.address, key, str(store), folder, "ab", "--memory", memory),
    ):
        made.wait(2, WAIT_S)
        yield made


def test_three_devices_of_a_twelfth_each_answer_by_the_codes(
    cluster: Cluster, store: Path, twelfth: int
) -> None:
    """The answer is one device's at the same bits, which none of them could give."""
    session = cluster.open(str(store))
    feeds = session.sample(TOKENS)
    reply = session(feeds)
    plan = session.plan_at(TOKENS)
    split = reply.details.partitions[1]
    assert len(split.participants) == 3
    assert split.bits == (6, 6, 6)
    assert max(plan.weight_bytes.values()) <= twelfth < sum(plan.weight_bytes.values())
    assert session.memory.parts[0].measured_bytes <= twelfth
    assert "bits by layer: 6 6 6" in str(plan)
    one = open_stored_encoder(store, bits=6)
    alone = Partition("ws", "a", (Share("a", one.spec.n_heads, TOKENS),), TOKENS)
    prepared = one.prepare(one.sample(TOKENS))
    (wanted,) = run_local(one, alone, [prepared], Library(host_isa(), None)).answers
    np.testing.assert_allclose(reply.outputs["logits"][0], wanted, atol=1e-4)


def test_it_promises_the_accuracy_of_its_bits_and_not_of_the_whole_model(
    cluster: Cluster, store: Path
) -> None:
    """Every device has a twelfth of float32's memory: the plan is in 6 bits, whatever a device alone has."""
    session = cluster.open(str(store))
    assert session.plan_at(TOKENS).partition.bits == (6, 6, 6)
    assert session.levels()[-1].accuracy is None or session.best == pytest.approx(MEASURED[6])
    session.curve()
    assert session.best == pytest.approx(MEASURED[6])
    assert [level.accuracy for level in session.levels()] == [session.best]
    request = session.request(session.sample(TOKENS))
    reply = session.answer(replace(request, accuracy_floor=MEASURED[6]))
    assert reply.accuracy == session.best
    with pytest.raises(BudgetError, match=r"0\.8300 at most, not 0\.9"):
        session.answer(replace(request, accuracy_floor=MEASURED[32]))


def test_threads_that_share_a_coded_session_get_their_own_answers(cluster: Cluster, store: Path) -> None:
    """Lengths change the plan, and plans of other lengths share the coded weights."""
    session = cluster.open(str(store))
    feeds = [session.sample(n, seed=n) for n in (5, 9, TOKENS)]
    wanted = [session(one).outputs["logits"] for one in feeds]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: session(feeds[i % 3]).outputs["logits"], range(48)))
    for i, logits in enumerate(found):
        np.testing.assert_allclose(logits, wanted[i % 3], atol=1e-4)
