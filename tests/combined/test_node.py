"""A node under everything at once: 64 clients, lying upstreams, a busy machine, an operator who retargets."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pliant.ir.endpoint import Request
from pliant.ir.link import Link
from pliant.ir.reply import Reply
from pliant.plan.plan import NO_TARGET_S
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.read import Store, open_store
from tests.combined.crowd import crowd
from tests.run.conftest import paper_profile
from tests.run.submodel.submodel_reference import Reference
from tests.serve.liars import Liar
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import GOOD, metric, target_of, until
from tests.tiny import WORDS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N_CLIENTS, N_EACH = 64, 4
MODEL_BYTES = 400_000
QUEUE = 24
"""Fewer than there are clients: some are refused."""
LONG_S = 3600.0
"""No queue is this long, even by estimates 64 times too high: the profile is not of this machine."""
TERMS: tuple[dict[str, Any], ...] = (
    {},
    {"deadline_s": LONG_S},
    {"accuracy_floor": 0.7834},
    {"deadline_s": LONG_S, "accuracy_floor": 0.8334},
    {"accuracy_floor": 0.8734},
    {"deadline_s": 1e-5, "best_effort": True},
    {"deadline_s": 1e-5},
    {"accuracy_floor": 0.99},
)
"""Floors are what submodels reach with all weights in memory. The last but one deadline nobody can keep, and
the last floor is refused."""


class Answers:
    """A session behind a node, and the replies that it gave, by the tokens that were asked."""

    def __init__(self, store: Store, cache: Path) -> None:
        options = SessionOptions(NO_TARGET_S, MODEL_BYTES, length=8, n_threads=1, adapts=False)
        profile = paper_profile(disk=Link(1e-4, 1e6))  # what is in memory decides how accurate a plan is
        self.session = ElasticSession(store, profile, options, name="model", cache=cache)
        self.replies: dict[bytes, list[Reply[ElasticDetails]]] = defaultdict(list)
        self._answers = self.session.answers
        self.session.answers = self._recorded  # type: ignore[method-assign]

    def _recorded(self, requests: Sequence[Request]) -> list[Reply[ElasticDetails]]:
        replies = self._answers(requests)
        for request, reply in zip(requests, replies, strict=True):
            self.replies[request.tensors["ids"].tobytes()].append(reply)
        return replies


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of one client, and what came back."""

    text: str
    terms: dict[str, Any]
    response: httpx.Response


@pytest.fixture
def store(graded_store: Path) -> Iterator[Store]:
    with open_store(graded_store) as found:
        yield found


def texts() -> list[str]:
    """As many different texts as there are requests, of different lengths."""
    found = [" ".join(words) for words in product(WORDS, ("good", "bad film", "not a good story"), WORDS)]
    return found[: N_CLIENTS * N_EACH]


def test_every_answer_is_right_and_counted_whoever_lies_and_whatever_changes(
    store: Store, kernel_cache: Path, busy: None
) -> None:
    """Each of these was tested alone: what one of them changes must not reach the answers of another.

    Nobody gets the answer to another text; what was promised of accuracy is kept, although the weights in
    memory change; and what an operator counts is what clients saw.
    """
    below, above = Answers(store, kernel_cache), Answers(store, kernel_cache)
    with (
        Liar(content=GOOD) as answers_another_model,
        Liar(spent_s=-1.0) as tells_negative_times,
        Liar(status=500) as fails,
        running(above.session, name="up", queue=QUEUE) as up,
    ):
        urls = (answers_another_model.url, tells_negative_times.url, fails.url, up.url)
        with running(below.session, name="end", upstreams=urls, queue=QUEUE, **fixed((0, 5.0))) as end:
            until(lambda: target_of(end, 8) != "local")
            found = _all_asked(end, below.session)
            _counts_match(end, found)
    _are_right(found, (below, above), Reference(store, kernel_cache))


def _all_asked(end: Running, session: ElasticSession) -> list[Asked]:
    found: list[Asked] = []
    given = texts()

    def ask(client: int) -> None:
        with httpx.Client(base_url=end.url, timeout=PATIENCE_S) as http:
            for n in range(client, len(given), N_CLIENTS):
                terms = TERMS[(n + n // N_CLIENTS) % len(TERMS)]
                body = asking(given[n], id=given[n], parameters=terms)
                found.append(Asked(given[n], terms, http.post("/v2/models/model/infer", content=body)))

    def operate(n: int) -> None:
        if n % 3 == 0:
            session.retarget(latency=(0.02, NO_TARGET_S)[n % 2], preload=MODEL_BYTES)
        for path in ("/metrics", "/v2/pliant/route?length=8", "/v2/health/ready"):
            assert httpx.get(f"{end.url}{path}", timeout=PATIENCE_S).status_code == 200
        session.give_way()

    crowd([partial(ask, client) for client in range(N_CLIENTS)], operate)
    return found


def _are_right(found: list[Asked], sessions: tuple[Answers, ...], reference: Reference) -> None:
    assert len(found) == N_CLIENTS * N_EACH
    for asked in found:
        response, terms = asked.response, asked.terms
        if response.status_code != 200:
            _is_refused_rightly(asked)
            continue
        said, encoded = response.json(), reference.encode(asked.text)
        assert said["id"] == asked.text
        logits, label = (np.array(output["data"]) for output in said["outputs"])
        replies = [reply for s in sessions for reply in s.replies[encoded.ids.tobytes()]]
        (reply, *_) = [r for r in replies if r.outputs["logits"].tolist() == [logits.tolist()]]
        np.testing.assert_allclose(logits, reference.logits(encoded, reply), atol=1e-5)  # float32, in turn
        assert label[0] == ("negative", "positive")[int(logits.argmax())]
        assert said["parameters"]["accuracy"] == reply.accuracy >= terms.get("accuracy_floor", 0.0) - 1e-9
        assert ("met" in said["parameters"]) == ("deadline_s" in terms)
    reference.close()


def _is_refused_rightly(asked: Asked) -> None:
    response, error = asked.response, asked.response.json()["error"]
    if asked.terms.get("accuracy_floor") == 0.99:
        assert (response.status_code, "is the most there is, not 0.99" in error) == (422, True)
        return
    assert response.status_code == 503, error
    if "no answer is in time" in error:
        assert asked.terms == {"deadline_s": 1e-5}, error
    else:
        assert int(response.headers["retry-after"]) >= 1


def _counts_match(end: Running, found: list[Asked]) -> None:
    seen = Counter(asked.response.status_code for asked in found)
    assert set(seen) == {200, 422, 503}
    path = "/v2/models/model/infer"
    for status, n in seen.items():
        assert metric(end, f'pliant_responses_total{{path="{path}",status="{status}"}}') == n
    counted: Counter[str] = Counter()
    for line in httpx.get(f"{end.url}/metrics", timeout=PATIENCE_S).text.splitlines():
        if line.startswith("pliant_requests_total"):
            counted[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
    assert +counted == {"ok": seen[200], "refused": seen[503] + seen[422]}  # without outcomes of zero
    for name in ("pliant_queue_length", "pliant_body_bytes"):
        assert metric(end, name) == 0
