"""64 threads on one routed session and 64 clients of one node, while what answers them dies and returns."""

import gc
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from pliant.api.open_cluster import Cluster
from pliant.api.open_endpoint import open_endpoint
from pliant.cluster.net.key import make_key
from pliant.errors import BudgetError, DeadlineError, NodeError
from pliant.ir.dilation import Dilation
from pliant.ir.reply import Reply
from pliant.models.tokenizer import TokenizedInput
from pliant.route.node_identity import NODE_HEADER
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_levels import plan_levels
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import RoutedDetails
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, workers
from tests.combined.crowd import crowd
from tests.combined.gateway import NAME, GatewayProcess
from tests.run.conftest import paper_profile
from tests.serve.nodes import PATIENCE_S, Running, asking, reserved, running
from tests.serve.test_routing import metric, until
from tests.tiny import WORDS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N_THREADS = N_CLIENTS = 64
N_BEFORE = N_AFTER = 2
N_BETWEEN = 200
"""Requests between two faults, at least."""
SLOW = Dilation(compute=20.0)
TOLERANCE = 1e-4  # a cluster adds float32 in another order
FEW = 48
"""Files that other things in the process may open meanwhile; what requests or clients left would be more."""
LENIENT_S = 3600.0
"""Longer than any test: a request must end because it is answered or refused, not because it is late."""
TERMS: tuple[dict[str, Any], ...] = (
    {},
    {"deadline_s": LENIENT_S},
    {"accuracy_floor": 0.7834},
    {"deadline_s": 0.03},
    {"deadline_s": LENIENT_S, "accuracy_floor": 0.8334},
    {"deadline_s": 0.03, "accuracy_floor": 0.8334},
    {"deadline_s": 1e-5, "best_effort": True},
    {"deadline_s": 1e-5},
    {"accuracy_floor": 0.99},
)
NEVER = ({"deadline_s": 1e-5}, {"accuracy_floor": 0.99})
TEXTS = [" ".join(words) for words in product(WORDS[:4], ("good", "bad film", "not a good story"))]


@dataclass(slots=True)
class Tally:
    """What came of the requests of all clients; `wrong` says what should not have come."""

    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        return self.outcomes.total()


@dataclass(frozen=True, slots=True)
class References:
    """By text and accuracy the logits of every way in which an elastic session answers; and the whole's."""

    by_accuracy: dict[str, dict[str, list[list[float]]]]
    whole: dict[str, np.ndarray]
    best: float

    def why_wrong(self, text: str, logits: np.ndarray, accuracy: float | None, floor: float) -> str | None:
        """None for an answer that is that of the accuracy told, bit by bit, and as accurate as was asked."""
        if accuracy is None or accuracy < floor - 1e-9:
            return f"{text!r}: an accuracy of {accuracy} where {floor} was asked"
        every = self.by_accuracy[text].get(_key(accuracy), [])
        if any(np.allclose(logits, one, rtol=0.0, atol=TOLERANCE) for one in every):
            return None
        is_whole = abs(accuracy - self.best) < 1e-9
        if is_whole and np.allclose(logits, self.whole[text], rtol=0.0, atol=TOLERANCE):
            return None  # the cluster's
        return f"{text!r}: {logits} with an accuracy of {accuracy} is no level's answer"


def _key(accuracy: float) -> str:
    return f"{accuracy:.9f}"


@pytest.fixture(scope="module")
def references(graded_store: Path, kernel_cache: Path) -> References:
    by_accuracy: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    whole = {}
    with opened(graded_store, kernel_cache) as session:
        assert isinstance(session, ElasticSession)
        best = session.best
        assert best is not None
        for text in TEXTS:
            encoded = session.encode(text)
            for level in plan_levels(session.runner):
                others = level.last - encoded.n_tokens
                if others < 0:
                    continue
                # Requests that wait together have the plan of an input with the rows of all.
                rest = TokenizedInput(np.resize(encoded.ids, others), np.resize(encoded.types, others))
                texts = [encoded, rest] if others else [encoded]
                assert isinstance(level.key, float)
                answered = session.runner.answer(texts, level.key, as_profiled=True, is_timed=False)[0]
                assert level.accuracy is not None
                by_accuracy[text][_key(level.accuracy)].append(answered.numbers.tolist())
                if abs(level.accuracy - best) < 1e-9:
                    whole[text] = answered.numbers.copy()
    logits = np.stack(list(whole.values()))
    gaps = np.abs(logits[:, None] - logits[None]).max(-1) + np.eye(len(TEXTS))
    assert gaps.min() > 10 * TOLERANCE, "else one text's answer would pass for another's"
    return References(by_accuracy, whole, best)


def opened(store: Path, cache: Path, **more: Any) -> Session[Any]:
    return open_endpoint(str(store), threads=1, profile=paper_profile(), cache=cache, **more)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test there are no more threads than before it, and hardly more files."""
    gc.collect()
    process, before = psutil.Process(), set(threading.enumerate())
    n_files = process.num_fds()
    yield
    gc.collect()
    # The thread of pyzmq that collects buffers is started once in a process, and stays.
    until(lambda: {type(t).__name__ for t in {*threading.enumerate()} - before} <= {"GarbageCollectorThread"})
    until(lambda: process.num_fds() < n_files + FEW, "files are left")


@pytest.mark.slow
def test_each_request_is_answered_once_and_rightly_or_refused_with_a_reason(
    graded_store: Path, kernel_cache: Path, tmp_path: Path, references: References, nothing_left: None
) -> None:
    """The gateway's process and the worker's are killed and come back meanwhile, and nobody is told of it."""
    make_key(tmp_path / "key")
    by_session, by_node = Tally(), Tally()
    with ExitStack() as stack:
        where = stack.enter_context(reserved())
        gateway = GatewayProcess(graded_store, where, kernel_cache)
        stack.callback(gateway.kill)
        gateway.start()
        cluster = stack.enter_context(
            Cluster("127.0.0.1:0", key=tmp_path / "key", threads=1, patience=PATIENT, cache=kernel_cache)
        )
        found = stack.enter_context(
            workers(cluster.address, tmp_path / "key", str(graded_store), tmp_path, "a")
        )
        cluster.wait(1, WAIT_S)
        shared = cluster.open(graded_store)
        shared.curve()
        slow = partial(opened, graded_store, kernel_cache, dilation=SLOW)
        session = stack.enter_context(RoutedSession(slow(), shared, [gateway.url]))
        node = stack.enter_context(running(slow(), cluster=shared, name="node", upstreams=(gateway.url,)))
        changed = threading.Event()

        def change() -> None:
            try:
                _passed(N_BETWEEN, by_session, by_node)
                gateway.kill()
                _passed(N_BETWEEN, by_session, by_node)
                found["a"].kill()
                gateway.start()
                found["b"] = WorkerProcess(
                    "b", cluster.address, tmp_path / "key", str(graded_store), tmp_path
                )
                cluster.wait(1, WAIT_S)
                _passed(N_BETWEEN, by_session, by_node)
            finally:
                changed.set()

        asking = [
            partial(_ask_session, session, references, by_session, i, changed) for i in range(N_THREADS)
        ]
        asking += [partial(_ask_node, node, references, by_node, i, changed) for i in range(N_CLIENTS)]
        crowd([*asking, change], partial(_look, session, node))
        assert not by_session.wrong + by_node.wrong, (by_session.wrong + by_node.wrong)[:5]
        _counts_match(node, gateway.url, by_node)
    for tally in (by_session, by_node):
        assert {"local", "cluster", "gateway"} & tally.outcomes.keys()


def _passed(n: int, *tallies: Tally) -> None:
    """Return once so many more requests have ended."""
    ends = [tally.n + n for tally in tallies]
    until(lambda: all(tally.n >= end for tally, end in zip(tallies, ends, strict=True)))


def _requests(first: int, changed: threading.Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """A text and its terms, again and again until all has happened, and a little longer."""
    n, left = first, N_BEFORE + N_AFTER
    while left:
        if changed.is_set() or n < first + N_BEFORE:
            left -= 1
        yield TEXTS[n % len(TEXTS)], TERMS[n % len(TERMS)]
        n += 1


def _ask_session(
    session: RoutedSession, references: References, tally: Tally, first: int, changed: threading.Event
) -> None:
    for text, terms in _requests(first, changed):
        floor = terms.get("accuracy_floor")
        try:
            reply: Reply[RoutedDetails] = session(
                text, latency=terms.get("deadline_s"), floor=floor, best_effort=terms.get("best_effort")
            )
        except (BudgetError, DeadlineError, NodeError) as error:
            tally.outcomes[type(error).__name__] += 1
            if isinstance(error, BudgetError) != (floor == 0.99) or not str(error):
                tally.wrong.append(f"{text!r} with {terms} is refused: {error!r}")
            if isinstance(error, NodeError) and error.status != 503:
                tally.wrong.append(f"{text!r} with {terms} is refused: {error!r}, {error.status}")
            continue
        tally.outcomes[reply.endpoint] += 1
        assert reply.logits is not None
        why = references.why_wrong(text, reply.logits, reply.accuracy, floor or 0.0)
        if why is not None:
            tally.wrong.append(f"{why}, by {reply.endpoint}")
        if terms in NEVER:
            tally.wrong.append(f"{text!r} with {terms} is answered by {reply.endpoint}")


def _ask_node(
    node: Running, references: References, tally: Tally, first: int, changed: threading.Event
) -> None:
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S, verify=False) as http:
        for n, (text, terms) in enumerate(_requests(first, changed)):
            id = f"{first}-{n}"
            body = asking(text, id=id, parameters=terms)
            response = http.post("/v2/models/graded/infer", content=body)
            said = response.json()
            tally.statuses[response.status_code] += 1
            if response.status_code != 200:
                tally.outcomes["refused"] += 1
                is_floor = terms.get("accuracy_floor") == 0.99
                if response.status_code != (422 if is_floor else 503) or not said["error"]:
                    tally.wrong.append(f"{text!r} with {terms}: {response.status_code}, {said}")
                continue
            tally.outcomes[NAME if response.headers[NODE_HEADER] == NAME else "local"] += 1
            logits = np.array(said["outputs"][0]["data"])
            accuracy = said["parameters"].get("accuracy")
            why = references.why_wrong(text, logits, accuracy, terms.get("accuracy_floor", 0.0))
            if why is not None:
                tally.wrong.append(f"{why}, by {response.headers[NODE_HEADER]}")
            if said["id"] != id or terms in NEVER or ("met" in said["parameters"]) != ("deadline_s" in terms):
                tally.wrong.append(f"{text!r} with {terms}: {said}")


def _look(session: RoutedSession, node: Running, n: int) -> None:
    """What an operator reads at any time."""
    assert len(session.explain(5).candidates) == 3
    for path in ("/metrics", "/v2/pliant/route?length=5", "/v2/health/ready"):
        assert httpx.get(f"{node.url}{path}", timeout=PATIENCE_S).status_code == 200


def _counts_match(node: Running, above: str, tally: Tally) -> None:
    counted: Counter[str] = Counter()
    for line in httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text.splitlines():
        if line.startswith("pliant_requests_total"):
            counted[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
    seen = tally.statuses
    assert +counted == {"ok": seen[200], "refused": seen[503] + seen[422]}  # without outcomes of zero
    for name in ("queue_length", "body_bytes"):
        assert metric(node, f"pliant_{name}") == 0
    for name in ("in_flight", "waiting"):
        line = f'pliant_upstream_{name}{{upstream="{above}"}}'
        until(lambda line=line: metric(node, line) == 0)  # what was asked beside an answer here has left
