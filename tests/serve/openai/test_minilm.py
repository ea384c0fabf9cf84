"""The real all-MiniLM-L6-v2 behind `/v1/embeddings`, by OpenAI's client, beside transformers in float32."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.api.open_endpoint import open_endpoint
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from tests.run.conftest import paper_profile
from tests.serve.nodes import running

openai = pytest.importorskip("openai", reason="openai's client is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TEXTS = (
    "a charming and often affecting journey",
    "No.",
    "The tokenizer splits unaffable words, numbers such as 3.14159, and Straße, into pieces.",
    "it 's a film that rewards patience , and there is much of it to reward " * 4,
)
TOLERANCE = 1e-5
"""Of numbers of a unit vector: float32 sums in another order, as tests/models/test_encoders.py has it."""


class Reference:
    """Mean pooling and unit length, as the model's own modules.json asks for."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self._model = transformers.AutoModel.from_pretrained(path).eval()

    def __call__(self, text: str) -> np.ndarray:
        with torch.no_grad():
            states = self._model(**self.tokenizer(text, return_tensors="pt")).last_hidden_state
        mean: np.ndarray = states[0].numpy().mean(axis=0)
        return mean / np.linalg.norm(mean)

    def n_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(self.tokenizer(text)["input_ids"]) for text in texts)


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Reference:
    return Reference(minilm)


@pytest.fixture(scope="module")
def client(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("minilm")
    store = build(open_checkpoint(minilm), folder / "store", bits=(2, 32))
    session = open_endpoint(store, threads=1, profile=paper_profile((12,)), cache=folder)
    session.name = "minilm"
    with (
        running(session) as node,
        openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}])
def test_embeddings_are_those_of_transformers(
    client: Any, reference: Reference, form: dict[str, str]
) -> None:
    """Several texts of unequal lengths in one request, without padding; usage counts their tokens."""
    found = client.embeddings.create(model="minilm", input=list(TEXTS), **form)
    for text, one in zip(TEXTS, found.data, strict=True):
        np.testing.assert_allclose(one.embedding, reference(text), atol=TOLERANCE)
    assert found.usage.prompt_tokens == reference.n_tokens(TEXTS)


def test_tokens_are_embedded_as_their_text(client: Any, reference: Reference) -> None:
    """A caller that tokenises by itself sends what the tokenizer gave."""
    ids = [reference.tokenizer(text)["input_ids"] for text in TEXTS[:2]]
    found = client.embeddings.create(model="minilm", input=ids)
    for text, one in zip(TEXTS, found.data, strict=False):
        np.testing.assert_allclose(one.embedding, reference(text), atol=TOLERANCE)


def test_clients_that_ask_at_once_get_their_own_vectors(client: Any, reference: Reference) -> None:
    """Requests that wait together run together; each client's answer is of its own text."""
    with ThreadPoolExecutor(8) as pool:
        asked = [TEXTS[number % 3] for number in range(24)]
        answers = pool.map(lambda text: client.embeddings.create(model="minilm", input=text), asked)
    wanted = {text: reference(text) for text in TEXTS[:3]}
    for text, answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer.data[0].embedding, wanted[text], atol=TOLERANCE)
