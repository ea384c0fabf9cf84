"""The page over HTTP: its files and their policy, its events, and who may read them."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from pliant.api.open_endpoint import open_endpoint
from pliant.ir.reply import Reply
from pliant.run.process_memory import MemoryBudget
from pliant.serve.http.limits import Limits
from pliant.serve.page.event_stream import MOST_VIEWERS
from pliant.serve.page.page_files import page_files
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running, running_models
from tests.serve.repository.test_repository_api import Shelf

EVENTS = "/v2/pliant/events"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), name="here") as found:
        yield found


@contextmanager
def events(node: Running, **options: Any) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of a node, as (name, value)."""
    with httpx.stream("GET", node.url + EVENTS, timeout=PATIENCE_S, **options) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _read(response)


def _read(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_all_files_are_sent_with_a_policy_that_lets_nothing_else_in(node: Running) -> None:
    """No inline script or style, nothing from another host, no frame around the page."""
    for path in ("/", *(f"/page/{name}" for name in page_files())):
        answer = httpx.get(node.url + path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(node.url, headers={"if-none-match": httpx.get(node.url).headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(f"{node.url}/page/..%2fpage_files.py").status_code == 404
    assert httpx.get(f"{node.url}/page/none.js").status_code == 404


def test_the_files_name_no_other_host_and_make_no_markup_of_text() -> None:
    """What a client or another node named reaches the page as text alone."""
    for name, file in page_files().items():
        text = file.plain.decode()
        if name.startswith("uplot"):
            continue
        found = set(re.findall(r"https?://[\w.-]+", text))
        assert found <= {"http://www.w3.org"}, name  # the name of SVG's elements, which nobody asks for
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
        ):
            assert word not in text, (name, word)
        assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=", text) or name.endswith(".js"), name


def test_the_page_has_less_than_150_kb() -> None:
    """[serve.page] as it lies on the disk, uncompressed."""
    assert sum(len(file.plain) for file in page_files().values()) < 150_000


def test_events_tell_a_request_its_end_and_the_counts_that_metrics_have(node: Running) -> None:
    """From the first event on; what was answered before is in the counts alone."""
    node.post("before")
    with events(node) as told:
        name, picture = next(told)
        assert (name, picture["name"], picture["models"][0]["name"]) == ("picture", "here", "upper")
        name, numbers = next(told)
        assert name == "numbers"
        before = numbers["models"]["upper:1"]["requests"]["local"]["ok"]
        node.post("a film", headers={"Pliant-Request": "my-id"})
        batches = next(value for name, value in told if name == "answers")
        (answer,) = batches[0]["answers"]
        assert answer[2:5] == [6, "local", "ok"]
        assert 0 < answer[5] < PATIENCE_S
        found = httpx.get(
            f"{node.url}/v2/pliant/answer", params={"number": answer[0], "model": "upper"}
        ).json()
        number, id, at_s, *_ = found["event"]
        assert (number, id, round(at_s, 3)) == (answer[0], "my-id", answer[1])
        assert [round(one, 6) if isinstance(one, float) else one for one in found["event"][3:11]] == answer[
            2:
        ]
        assert found["text"] is None
        assert {bar["kind"] for bar in found["measured"]} == {"wait", "compute"}
        assert found["measured"][-1]["end_s"] == pytest.approx(answer[5], abs=1e-6)
        numbers = next(value for name, value in told if name == "numbers")
        assert numbers["models"]["upper:1"]["requests"]["local"]["ok"] == before + 1
    metrics = httpx.get(f"{node.url}/metrics").text
    assert (
        f'pliant_requests_total{{model="upper",model_version="1",outcome="ok",target="local"}} {before + 1}.0'
        in metrics
    )


def test_a_refusal_is_told_with_its_reason(node: Running) -> None:
    """A page that shows only answers would look well while a node refuses."""
    with events(node) as told:
        next(told)
        answer = node.post("bug")
        assert answer.status_code == 500
        batches = next(value for name, value in told if name == "answers")
        event = batches[0]["answers"][-1]
        assert event[4] == "failed"
        found = httpx.get(f"{node.url}/v2/pliant/answer", params={"number": event[0]}).json()
        assert found["error"] == answer.json()["error"]


def test_the_outlook_is_what_explain_says_at_each_length(node: Running) -> None:
    """One rule decides, whoever asks."""
    outlook = httpx.get(f"{node.url}/v2/pliant/outlook", params={"deadline_s": 5}).json()
    assert outlook["lengths"][0] == 1
    assert outlook["lengths"][-1] == 1000
    for i in (0, len(outlook["lengths"]) - 1):
        query = {"length": outlook["lengths"][i], "deadline_s": 5}
        found = httpx.get(f"{node.url}/v2/pliant/route", params=query).json()
        assert found["target"] == outlook["chosen"][i]
    refused = httpx.get(f"{node.url}/v2/pliant/outlook", params={"accuracy_floor": 0.9}).json()
    assert set(refused["chosen"]) == {None}
    for wrong in ({"deadline_s": "soon"}, {"deadline_s": "nan"}, {"accuracy_floor": "2"}):
        assert httpx.get(f"{node.url}/v2/pliant/outlook", params=wrong).status_code == 400
    assert httpx.get(f"{node.url}/v2/pliant/outlook", params={"model": "other"}).status_code == 404
    for number in ("", "x", "-1", "9" * 30, "٣"):
        assert httpx.get(f"{node.url}/v2/pliant/answer", params={"number": number}).status_code == 404


def test_a_token_guards_what_the_page_reads_and_not_its_files() -> None:
    """The files hold nothing of the node; a browser cannot show a token for them."""
    client, token = "client" * 4, "operator" * 3
    with running(Upper(), name="here", tokens=(client,), operator_tokens=(token,)) as node:
        assert httpx.get(node.url).status_code == 200
        for path in (EVENTS, "/v2/pliant/outlook", "/v2/pliant/answer?number=1"):
            assert httpx.get(node.url + path).status_code == 401
            shown = {"authorization": f"Bearer {client}"}
            assert httpx.get(node.url + path, headers=shown).status_code == 403
        with events(node, headers={"authorization": f"Bearer {token}"}) as told:
            assert next(told)[0] == "picture"


def test_a_page_too_many_is_refused_and_one_that_closes_makes_room() -> None:
    """Pages cost a connection and some time each."""
    with running(Upper(), name="here") as node, ExitStack() as open_:
        first = open_.enter_context(ExitStack())
        every = [(open_ if i else first).enter_context(events(node)) for i in range(MOST_VIEWERS)]
        for told in every:
            next(told)
        with httpx.stream("GET", node.url + EVENTS) as answer:
            answer.read()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        first.close()
        statuses = [503]
        while statuses[-1] == 503:  # until the node has noticed
            with httpx.stream("GET", node.url + EVENTS, timeout=PATIENCE_S) as response:
                statuses.append(response.status_code)
        assert statuses[-1] == 200


@pytest.mark.usefixtures("lingering")
def test_a_node_that_leaves_tells_its_pages_and_is_not_kept_by_them() -> None:
    """A page that stays open would else hold a node up until its patience ends."""
    with running(Upper(), name="here", limits=Limits(hop_s=30.0)) as node, events(node) as told:
        next(told)
        node.stop()
        assert [name for name, _ in told][-1] == "leaves"
        node.join()


def test_a_page_that_reads_nothing_is_dropped() -> None:
    """Else each would keep some megabytes and a connection, for ever."""
    reply = Reply({}, "upper", 0.01, None, 3)
    with running(Upper(), name="here", limits=Limits(write_s=0.2)) as node:
        assert node.node is not None
        feed = node.node.feed
        host, _, port = node.address.partition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(f"GET {EVENTS} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            sock.recv(16)
            ends_s = time.monotonic() + PATIENCE_S
            while feed.n_viewers:
                for _ in range(100):
                    feed.record_reply(reply)
                assert time.monotonic() < ends_s
        assert feed.events_since(0) == []


def test_the_page_loads_no_model_that_was_freed_and_counts_no_request() -> None:
    """The plan of a recurrent model loads it, which evicts the model that is in use."""
    sources = ("random:cove-200:1", "random:cove-200:2")
    with open_endpoint(sources[0], threads=1) as alone:
        one_bytes = alone.memory.predicted_bytes
    budget = MemoryBudget(one_bytes + one_bytes // 2)
    served = [open_endpoint(source, memory=budget, threads=1) for source in sources]
    with running(served[0], served[1:], budget) as node:
        (freed,) = [one.name for one in served if one.loading_s]
        before = {share.name: share.n_asked for share in budget.shares}
        with events(node) as told:
            name, picture = next(told)
        assert (name, [model["plan"] for model in picture["models"]]) == ("picture", [None, None])
        assert [one.name for one in served if one.loading_s] == [freed]
        assert all(share.n_asked <= before[share.name] for share in budget.shares)


def test_two_versions_of_one_name_are_told_apart() -> None:
    """Both have a request with the number 1, and counts of their own."""
    shelves = [Shelf("m", "1"), Shelf("m", "2")]
    with running_models([shelf.entry for shelf in shelves]) as node, events(node) as told:
        shelves[0].opened[0].max_length = 5
        name, picture = next(told)
        found = [(model["key"], model["name"], model["version"]) for model in picture["models"]]
        assert (name, found) == ("picture", [("m:1", "m", "1"), ("m:2", "m", "2")])
        lengths: dict[str, int] = {}
        for version, text in (("1", "ab"), ("2", "a film")):
            url = f"{node.url}/v2/models/m/versions/{version}/infer"
            assert httpx.post(url, content=asking(text), timeout=PATIENCE_S).status_code == 200
        while len(lengths) < 2:
            for batch in next(value for name, value in told if name == "answers"):
                lengths[batch["model"]] = batch["answers"][0][2]
        assert lengths == {"m:1": 2, "m:2": 6}
        numbers = next(value for name, value in told if name == "numbers")
        assert {key: one["requests"]["local"]["ok"] for key, one in numbers["models"].items()} == {
            "m:1": 1,
            "m:2": 1,
        }
        for query, length in (({"version": "1"}, 2), ({"version": "2"}, 6), ({}, 6)):
            asked = {"model": "m", "number": 1, **query}
            answer = httpx.get(f"{node.url}/v2/pliant/answer", params=asked, timeout=PATIENCE_S).json()
            assert answer["event"][3] == length
        for path in ("route", "outlook"):
            statuses = [
                httpx.get(
                    f"{node.url}/v2/pliant/{path}",
                    params={"model": "m", "version": version, "length": 6},
                    timeout=PATIENCE_S,
                ).status_code
                for version in ("1", "2", "3")
            ]
            assert statuses == ([400, 200, 404] if path == "route" else [200, 200, 404])
