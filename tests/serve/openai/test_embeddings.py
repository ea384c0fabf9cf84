"""OpenAI's own client asks a node for embeddings."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serve.models import Counts, Upper, vector_of
from tests.serve.nodes import PATIENCE_S, Running, running
from tests.serve.test_routing import metric

openai = pytest.importorskip("openai", reason="openai's client is not installed")
TOKEN = "client-token-0123"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), [Counts()], tokens=(TOKEN,)) as found:
        yield found


@pytest.fixture(scope="module")
def client(node: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
@pytest.mark.parametrize("given", ["abca", ["abca"], ["a", "bb", "ccc"] * 20, [97, 97, 98], [[97], [98, 99]]])
def test_the_client_gets_a_vector_for_each_input(client: Any, given: Any, form: dict[str, str]) -> None:
    """[serve.clients] texts and tokens, in both forms; by itself the client asks for base64, and decodes."""
    found = client.embeddings.create(model="counts", input=given, **form)
    items = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    items = [item.encode() if isinstance(item, str) else item for item in items]
    vectors = [one.embedding for one in found.data]
    if form.get("encoding_format") == "base64":
        import base64

        vectors = [
            np.frombuffer(base64.b64decode(v), "<f4").tolist() if isinstance(v, str) else v for v in vectors
        ]
    assert vectors == [vector_of(item) for item in items]
    assert [one.index for one in found.data] == list(range(len(items)))
    assert found.model == "counts"
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, items))


def test_the_client_reads_our_errors(node: Running, client: Any) -> None:
    """By the class that it raises for each, with the reason."""
    create = client.embeddings.create
    for given, kind, why in (
        ({"model": "upper", "input": "a"}, openai.NotFoundError, "embeddings here: counts"),
        ({"model": "no", "input": "a"}, openai.NotFoundError, "embeddings here: counts"),
        ({"model": "counts", "input": []}, openai.BadRequestError, "none of them empty"),
        ({"model": "counts", "input": ["a", [97]]}, openai.BadRequestError, "one kind"),
        ({"model": "counts", "input": ["a"] * 2049}, openai.BadRequestError, "at most 2048"),
        ({"model": "counts", "input": [[2**70]]}, openai.BadRequestError, "cannot be read|in JSON"),
        ({"model": "counts", "input": "a" * 51}, openai.BadRequestError, "at most 50"),
        ({"model": "counts", "input": "a", "dimensions": 2}, openai.BadRequestError, "4 dimensions"),
        ({"model": "counts", "input": "a" * (5 << 20)}, openai.APIStatusError, "longer than"),
    ):  # fmt: skip
        with pytest.raises(kind, match=why):
            create(**given)
    assert create(model="counts", input="a", dimensions=4).data[0].embedding[0] == 1
    late = {"deadline_s": 1e-6}
    with pytest.raises(openai.InternalServerError, match="in time"):
        create(model="counts", input="a", extra_body=late)
    with (
        openai.OpenAI(base_url=f"{node.url}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="no valid token"),
    ):
        other.embeddings.create(model="counts", input="a")


def test_what_is_no_request_is_refused_in_the_same_form(node: Running) -> None:
    """Also before it is read."""
    for content in (b"", b"{", b"[]", b'{"model": 1, "input": "a"}', b"\xff", b"[" * 10_000):
        answer = httpx.post(
            f"{node.url}/v1/embeddings", content=content, headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_queue_that_is_shorter_than_a_list_is_no_limit_to_it() -> None:
    """As for rows; the texts that have no room wait for those before them."""
    model, items = Counts(), ["abca"[: n % 4] for n in range(8)]
    model.gate.clear()
    with running(model, queue=2) as node, ThreadPoolExecutor(1) as pool:
        url, body = f"{node.url}/v1/embeddings", {"model": "counts", "input": items}
        asked = pool.submit(httpx.post, url, json=body, timeout=PATIENCE_S)
        assert model.is_asked.wait(PATIENCE_S)
        httpx.get(f"{node.url}/v2/health/live", timeout=PATIENCE_S)  # all that may wait does
        model.gate.set()
        answer = asked.result()
    assert answer.status_code == 200, answer.text
    assert [one["embedding"] for one in answer.json()["data"]] == [vector_of(item.encode()) for item in items]


def test_embeddings_are_counted_in_the_metrics_of_their_model() -> None:
    """The path names no model: a dashboard would show its failures at another one."""
    with running(Upper(), [Counts()]) as node:
        asked = {"model": "counts", "input": "abc"}
        answer = httpx.post(f"{node.url}/v1/embeddings", json=asked, timeout=PATIENCE_S)
        assert answer.status_code == 200
        line = 'pliant_responses_total{{model="{}",path="/v1/embeddings",status="200"}}'
        assert metric(node, line.format("counts")) == 1
