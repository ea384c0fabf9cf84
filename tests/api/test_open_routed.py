"""One session over this device, a cluster and a node above: real models, real processes, one deadline."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.open_cluster import Cluster, cluster_status
from pliant.api.open_encoder import open_encoder
from pliant.api.open_endpoint import open_endpoint
from pliant.cluster.net.key import default_path, new_key
from pliant.errors import BudgetError, DeadlineError, InputError, NodeError
from pliant.ir.dilation import Dilation
from pliant.ir.reply import Reply
from pliant.plan.split.activation_bytes import whole_memory_bytes
from pliant.route.choice.energy import LTE, PowerModel
from pliant.run.process_memory import MemoryBudget
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.explain_choice import EndpointEstimate
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import RoutedDetails, Routing
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy
from tests.cluster.coded import small_store
from tests.cluster.ports import unused_ports
from tests.cluster.processes import PATIENT, WAIT_S, workers
from tests.cluster.test_clustered import write_key
from tests.multicast import multicast as multicast
from tests.serve.conftest import patience as patience
from tests.serve.node.test_peers import OPERATOR, peers
from tests.serve.nodes import Running, reserved, running
from tests.serve.test_routing import until

TEXTS = ["a charming film", "dull", "an affecting journey through a small town, told with warmth"]
SLOW = Dilation(compute=300.0)
TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def source(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("bert", n_layers=4, widths=(2, 4)))


@pytest.fixture(scope="module")
def expected(source: str) -> list[np.ndarray]:
    with pliant.open(source, threads=1, preload="100MB") as alone:
        return [alone(text).logits for text in TEXTS]


@contextmanager
def gateway(source: str) -> Iterator[Running]:
    with running(open_endpoint(source, preload="100MB", threads=1), name="gateway", learn_s=0.5) as node:
        yield node


@contextmanager
def routed(source: str, **options: object) -> Iterator[RoutedSession]:
    with pliant.open(source, threads=1, preload="100MB", **options) as session:  # type: ignore[arg-type]
        assert isinstance(session, RoutedSession)
        yield session


def chosen(session: RoutedSession, tokens: int = 5) -> str | None:
    return session.explain(tokens).target


def test_a_slow_device_has_its_inputs_answered_above(source: str, expected: list[np.ndarray]) -> None:
    """The same answers, said to be the gateway's, with the reason; the choice is explained beforehand."""
    with gateway(source) as node, routed(source, upstreams=[node.url], dilation=SLOW) as session:
        session(TEXTS[0])  # how slow the device is, is learned
        until(lambda: chosen(session) == node.url)
        for text, logits in zip(TEXTS, expected, strict=True):
            reply = session(text)
            assert (reply.endpoint, reply.details.node) == ("gateway", "gateway")
            np.testing.assert_allclose(reply.logits, logits, atol=TOLERANCE)
            assert reply.label == session.labels[logits.argmax()]  # type: ignore[index]
            assert reply.details.reason == "the most accurate, then the least time"
            here, above = reply.details.endpoints
            assert (here.target, above.target, above.is_chosen) == ("local", node.url, True)
            assert here.total_s is not None
            assert reply.details.expected.seconds < here.total_s
        replies = session(TEXTS)
        assert [reply.label for reply in replies] == [session(text).label for text in TEXTS]
        outputs = session.run({"text": np.array([TEXTS[0].encode()], object)})
        np.testing.assert_allclose(outputs["logits"][0], expected[0], atol=TOLERANCE)
        into = np.empty((1, 2), np.float32)
        assert session.run({"text": TEXTS[0]}, {"logits": into})["logits"] is into
        np.testing.assert_allclose(into, outputs["logits"], atol=TOLERANCE)
        with pytest.raises(InputError, match="'logits' is int64"):
            session.run({"text": TEXTS[0]}, {"logits": into.astype(np.int64)})
        rows = session.explain(tokens=5).candidates
        assert [row.target for row in rows] == ["local", node.url]
        assert rows[1].is_chosen
        assert rows[1].bound_s is not None
        pair = session(TEXTS[0], TEXTS[1])
        assert pair.endpoint == "local", "the protocol has no pairs of texts"


def test_one_call_opens_a_device_a_cluster_by_its_address_and_a_node_above(
    source: str, expected: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation has it: workers join later, with the key of `pliant cluster key`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    default_path().parent.mkdir()
    key = write_key(default_path(), new_key())
    with (
        gateway(source) as node,
        reserved() as at,
        routed(source, cluster=str(at), upstreams=[node.url]) as session,
        workers(str(at), key, source, tmp_path, "a"),
    ):
        until(lambda: [member.is_usable for member in cluster_status(str(at)).members] == [True])
        until(lambda: all(row.total_s is not None for row in session.explain(5).candidates))
        for text, logits in zip(TEXTS, expected, strict=True):
            reply = session(text)
            np.testing.assert_allclose(reply.logits, logits, atol=TOLERANCE)
            assert reply.endpoint in ("local", "cluster", "gateway")
            rows = reply.details.endpoints
            assert [row.target for row in rows] == ["local", "cluster", node.url]
            assert [row.target for row in rows if row.is_chosen] == [reply.details.expected.name]
        found = session.explain(tokens=5)
        assert [row.target for row in found.candidates] == ["local", "cluster", node.url]
        assert [row.target for row in found.candidates if row.is_chosen] == [found.target]
        said = str(found).splitlines()
        assert [
            name in line for name, line in zip(("local", "cluster", node.url), said[1:], strict=False)
        ] == [True] * 3
        assert said[-1] == f"{found.target}: the most accurate, then the least time."


def test_no_answer_is_lost_or_given_twice_when_the_node_above_dies(
    source: str, expected: list[np.ndarray]
) -> None:
    """Eight threads ask all the while; what the gateway does not answer, the device does."""
    with gateway(source) as node, routed(source, upstreams=[node.url], dilation=Dilation(30.0)) as session:
        session(TEXTS[0])
        until(lambda: chosen(session) == node.url)

        def ask(i: int) -> str:
            if i == 30 and node.server is not None:
                assert node.loop is not None
                node.loop.call_soon_threadsafe(node.server.stop)
            reply = session(TEXTS[i % 3])
            np.testing.assert_allclose(reply.logits, expected[i % 3], atol=TOLERANCE)
            return reply.endpoint

        with ThreadPoolExecutor(8) as pool:
            endpoints = Counter(pool.map(ask, range(90)))
        assert endpoints.keys() <= {"gateway", "local"}
        assert sum(endpoints.values()) == 90
        until(lambda: chosen(session) == "local")
        assert session(TEXTS[1]).endpoint == "local"


def test_the_cluster_answers_where_the_device_is_slow_and_the_device_where_the_workers_die(
    source: str, expected: list[np.ndarray], tmp_path: Path
) -> None:
    """Its members are as quick as they are; the device's own session is slowed down."""
    key = write_key(tmp_path / "key", new_key())
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, patience=PATIENT) as cluster,
        workers(cluster.address, key, source, tmp_path, "a") as found,
    ):
        cluster.wait(1, WAIT_S)
        with routed(source, cluster=cluster, dilation=Dilation(compute=3000.0)) as session:
            until(lambda: session(TEXTS[0]).endpoint == "cluster")
            for text, logits in zip(TEXTS, expected, strict=True):
                reply = session(text)
                assert reply.endpoint == "cluster"
                np.testing.assert_allclose(reply.logits, logits, atol=TOLERANCE)
            found["a"].kill()
            for text, logits in zip(TEXTS, expected, strict=True):
                np.testing.assert_allclose(session(text).logits, logits, atol=TOLERANCE)
            assert isinstance(session(TEXTS[0]).details, RoutedDetails)


def test_texts_too_long_for_the_memory_of_a_cluster_are_answered_here(
    source: str, tmp_path: Path, expected: list[np.ndarray]
) -> None:
    """The cluster is quicker, but has memory for the activations of short texts only."""
    key, spec = write_key(tmp_path / "key", new_key()), open_encoder(source, tmp_path).spec
    memory, long = whole_memory_bytes(spec, 8), "an affecting journey through a small town"
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, patience=PATIENT, memory=memory) as cluster,
        routed(source, cluster=cluster, dilation=Dilation(compute=3000.0)) as session,
    ):
        n_long = session.request({"text": long}).length
        assert n_long > 8
        until(lambda: session(TEXTS[0]).endpoint == "cluster")
        rows = {row.target: row for row in session.explain(n_long).candidates}
        assert (rows["cluster"].constraint, rows["cluster"].most_n) == ("memory", 8)
        assert chosen(session, n_long) == "local"
        assert session(long).endpoint == "local"
        assert session(TEXTS[0]).endpoint == "cluster"


def test_a_cluster_without_memory_is_out_of_reach_until_workers_come(
    source: str, expected: list[np.ndarray], tmp_path: Path
) -> None:
    """Opening failed without them, though this device can answer. When they died, the cluster was chosen for
    every request without a deadline, failed each time, and explanations went on to name it."""
    key = write_key(tmp_path / "key", new_key())
    n_bytes = whole_memory_bytes(open_encoder(source, tmp_path).spec, 8)

    def cluster_row() -> EndpointEstimate:
        return session.explain(5).candidates[1]

    with (
        Cluster("127.0.0.1:0", key=key, threads=1, patience=PATIENT, memory=n_bytes // 2) as cluster,
        routed(source, cluster=cluster, dilation=SLOW) as session,
    ):

        def is_answered_here() -> None:
            reply = session(TEXTS[0])
            assert reply.endpoint == "local"
            np.testing.assert_allclose(reply.logits, expected[0], atol=TOLERANCE)
            for row in (cluster_row(), reply.details.endpoints[1]):
                assert (row.target, row.total_s, row.is_chosen) == ("cluster", None, False)
                assert "the layers' weights take" in (row.reason or "")
                assert "`pliant worker --join" in (row.reason or "")
            assert session.explain(5).target == "local"
            assert all(level.curve.at(5) < 1e3 for level in session.levels())

        is_answered_here()
        for name in ("a", "b"):
            with workers(cluster.address, key, source, tmp_path, name) as found:
                cluster.wait(1, WAIT_S)
                until(lambda: cluster_row().total_s is not None)
                until(lambda: session(TEXTS[0]).endpoint == "cluster")
                np.testing.assert_allclose(session(TEXTS[1]).logits, expected[1], atol=TOLERANCE)
                found[name].kill()
                assert session(TEXTS[0]).endpoint == "local", "the run fails"
                until(lambda: cluster_row().total_s is None)
                is_answered_here()


def test_a_cluster_that_a_session_leads_reserves_its_weights_in_the_shared_budget(
    source: str, expected: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster took the budget for a number of bytes, and refused it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pliant").mkdir()
    write_key(tmp_path / "pliant" / "cluster.key", new_key())
    (port,) = unused_ports(1)
    spec = open_encoder(source, tmp_path).spec
    address, needed = f"127.0.0.1:{port}", whole_memory_bytes(spec, spec.max_rows)

    budget = MemoryBudget(10**8)
    with pliant.open(source, threads=1, memory=budget, cluster=address) as session:
        for text, logits in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(session(text).logits, logits, atol=TOLERANCE)
        with budget.turns.lock:  # this device's own session waits, and is late
            reply = session(TEXTS[0], latency="60s")
        assert reply.endpoint == "cluster"
        np.testing.assert_allclose(reply.logits, expected[0], atol=TOLERANCE)
        (share,) = (one for one in budget.shares if not one.name.endswith("(cluster)"))
        assert budget.total_bytes - budget.free_bytes == share.share_bytes + needed
        least = budget.least_bytes
    assert budget.free_bytes == budget.total_bytes

    tight = MemoryBudget(least)
    with pliant.open(source, threads=1, memory=tight, cluster=address) as session:
        assert session(TEXTS[0]).label is not None
        assert tight.free_bytes >= 0
    assert tight.free_bytes == tight.total_bytes

    small = MemoryBudget(least - 1)
    with pytest.raises(BudgetError, match=r"for its cluster take .* Raise that limit") as refused:
        pliant.open(source, threads=1, memory=small, cluster=address)
    assert refused.value.short_bytes == 1
    assert small.free_bytes == small.total_bytes


def test_a_worker_that_an_operator_removes_stays_away_until_he_takes_it_back(
    source: str, expected: list[np.ndarray], tmp_path: Path
) -> None:
    """By `POST /v2/pliant/peers` of a node that leads a cluster; requests go on, joules by device."""
    key = write_key(tmp_path / "key", new_key())
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, patience=PATIENT, shares="equal") as cluster,
        workers(cluster.address, key, source, tmp_path, "a") as found,
    ):
        cluster.wait(1, WAIT_S)
        session = cluster.open(source)
        watts = {"a": PowerModel("a", 0.0, 7.0, "")}
        energy = AnswerEnergy(PowerModel("here", 0.0, 3.0, ""), (), watts)
        with running(session, operator_tokens=(OPERATOR,), energy=energy, name="hub") as node:

            def ask() -> tuple[np.ndarray, dict[str, float]]:
                asked = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXTS[0]]}]}
                url = f"{node.url}/v2/models/{session.name}/infer"
                answer = httpx.post(url, json=asked, timeout=WAIT_S).json()
                (logits,) = (o["data"] for o in answer["outputs"] if o["name"] == "logits")
                return np.array(logits, np.float32), answer["parameters"]

            def is_used() -> list[bool]:
                return [worker["is_usable"] for worker in peers(node).json()["workers"]]

            assert is_used() == [True]
            logits, said = ask()
            np.testing.assert_allclose(logits, expected[0], atol=TOLERANCE)
            assert said["energy_j"] > 0.0
            removed = peers(node, {"remove_workers": ["a"]}).json()["workers"]
            assert "operator" in removed[0]["reason"]
            np.testing.assert_allclose(ask()[0], expected[0], atol=TOLERANCE)
            until(lambda: "removed by an operator" in found["a"].text())
            assert is_used() == [False]
            assert session(TEXTS[0]).details.partitions[-1].participants == (cluster.name,)
            assert peers(node, {"add_workers": ["a"]}).status_code == 200
            until(lambda: is_used() == [True])
            np.testing.assert_allclose(ask()[0], expected[0], atol=TOLERANCE)
            details = session(TEXTS[0]).details
            assert details.partitions[-1].participants == (cluster.name, "a")
            spent_j = 0.0
            for step, span in zip(details.program.steps, details.spans, strict=True):
                device = step.lane.partition("/")[0]
                spent_j += span.seconds * {cluster.name: 3.0, "a": 7.0}.get(device, 0.0)
            counted = energy.measure(lambda: Reply({}, "", 0.0, details)).energy_j
            assert counted == pytest.approx(spent_j)


def test_a_session_finds_the_nodes_above_it_and_counts_its_joules(
    source: str, expected: list[np.ndarray], multicast: None
) -> None:
    """`routing` alone makes a session that routes; a reply says what it took of this device."""
    local = open_endpoint(source, preload="100MB", threads=1)
    options = {"routing": Routing(discover=True, power="3.0", radio="lte"), "dilation": SLOW}
    with (
        running(local, name="gateway", learn_s=0.5, is_announced=True) as node,
        routed(source, **options) as session,
    ):
        reply = session(TEXTS[0])
        assert reply.energy_j is not None
        assert reply.energy_j > 0.0
        until(lambda: node.url in [row.target for row in session.explain(5).candidates])
        until(lambda: chosen(session) not in (None, "local"))
        reply = session(TEXTS[0])
        np.testing.assert_allclose(reply.logits, expected[0], atol=TOLERANCE)
        assert reply.details.node == "gateway"
        assert reply.energy_j is not None
        assert reply.energy_j > LTE.transfer_j(len(TEXTS[0]), 1)
        assert reply.details.expected.energy_j > 0.0


def test_a_cluster_has_the_accuracy_of_the_bits_that_it_keeps(tmp_path: Path) -> None:
    """Not the best of the device's own session, whose memory says nothing of the members'."""
    store = small_store(tmp_path)
    measured = {2: 0.6, 6: 0.83, 32: 0.9}
    entries = (AccuracyEntry(3, 4, bits, accuracy, -0.5) for bits, accuracy in measured.items())
    put_accuracy(store, AccuracyTable(1000, tuple(entries)))
    key = write_key(tmp_path / "key", new_key())
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, weights=2, shares="equal") as cluster,
        routed(str(store), cluster=cluster, depths="any") as session,
    ):
        assert session.local.best == pytest.approx(measured[32])
        rows = {row.target: row for row in session.explain(5).candidates}
        assert rows["cluster"].accuracy == pytest.approx(measured[2])
        assert rows["local"].accuracy == pytest.approx(measured[32])
        assert rows["local"].is_chosen
        reply = session(TEXTS[0], floor=0.7)
        assert (reply.endpoint, reply.accuracy) == ("local", pytest.approx(measured[32]))
        assert cluster.open(str(store))(TEXTS[0]).accuracy == pytest.approx(measured[2])


def test_a_deadline_is_kept_or_refused_at_once(source: str) -> None:
    """With what could be; by best effort the answer comes late, and says so."""
    with routed(source, upstreams=["http://127.0.0.1:9"], latency="10s") as session:
        reply = session(TEXTS[0])
        assert (reply.endpoint, reply.target_s, reply.met) == ("local", 10.0, True)
        with pytest.raises(DeadlineError, match="no answer is in time") as refused:
            session(TEXTS[0], latency=1e-6)
        assert refused.value.soonest_s > 1e-6
        late = session(TEXTS[0], latency=1e-6, best_effort=True)
        assert late.met is False
        assert late.details.reason == "no answer is in time: the soonest"
        with pytest.raises(BudgetError, match="never measured"):
            session(TEXTS[0], floor=0.5)
        session.retarget(latency="20s")
        assert session(TEXTS[0]).target_s == 20.0
        found = session.explain(5, latency="1us")
        assert found.target is None
        assert "no answer is in time" in found.reason
        assert "does not answer" in (found.candidates[1].reason or "") or found.candidates[1].reason


def test_what_cannot_be_routed_is_refused(source: str) -> None:
    """Before anything runs, and nothing is left behind."""
    with pytest.raises(NodeError, match="not a node's address"):
        pliant.open(source, threads=1, upstreams=["gateway:8080"])
    with routed(source, upstreams=["http://127.0.0.1:9"]) as session:
        with pytest.raises(InputError, match="nothing to change"):
            session.retarget()
        with pytest.raises(InputError, match="belongs to one text"):
            session(TEXTS, "pair")
    with pytest.raises(InputError, match="closed"):
        session(TEXTS[0])


def test_threads_that_ask_while_the_session_is_closed_get_an_answer_or_are_told(source: str) -> None:
    """None of them waits for ever; a long list of texts does not fill the queue either."""
    with routed(source, upstreams=["http://127.0.0.1:9"]) as session:
        assert len(session([TEXTS[i % 3] for i in range(100)])) == 100

        def ask(i: int) -> bool:
            try:
                return session(TEXTS[i % 3]).label is not None
            except InputError:
                return False

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, i) for i in range(200)]
            asked[5].result()
            session.close()
            answered = [one.result(60) for one in asked]
        assert any(answered)
