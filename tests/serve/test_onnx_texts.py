"""Texts for ONNX models and compiled ones in `infer`: by their tokenizer, over REST and gRPC."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest

from pliant.api.compile_onnx import compile
from pliant.cli.compile import CompileArguments
from pliant.cli.compile import compile as write_compiled
from pliant.cli.shared.model_arguments import ModelArguments
from pliant.ir.port import Port
from pliant.models.onnx.onnx_text import open_onnx_text
from pliant.serve.protocol.signature import Signature
from pliant.serve.repository.model_entry import ModelEndpoints
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, fixed, running, running_models
from tests.serve.openai.test_onnx_embeddings import INPUTS, TABLE, TYPES, text_graph
from tests.serve.test_routing import target_of, until
from tests.tiny import tiny_spec, write_model

TEXTS = ["a good film", "It is not bad, but the plot was!", "movie", "good good bad"]


def served(path: Path, **options: Any) -> Any:
    entry = ModelArguments(source=str(path), threads=1).entry(ModelEndpoints())
    return running_models([entry], grpc=ANY_PORT, **options)


def model_in(folder: Path, is_text: bool = True) -> Path:
    """The graph, with a tokenizer beside it or without one."""
    folder.mkdir(exist_ok=True)
    if is_text:
        write_model(folder, tiny_spec("bert"))
    onnx.save(text_graph(), folder / "embeds.onnx")
    return folder / "embeds.onnx"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("texts") / "bert")


@pytest.fixture(scope="module")
def node(path: Path) -> Iterator[Running]:
    with served(path) as found:
        yield found


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[str, np.ndarray]:
    """What onnxruntime answers to the tokens of the library `tokenizers`."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    session = runtime.InferenceSession(str(path))
    found = {}
    for text in TEXTS:
        one = tokenizer.encode(text)
        rows = dict(zip(INPUTS, (one.ids, one.attention_mask, one.type_ids), strict=True))
        (found[text],) = session.run(None, {name: np.array([row]) for name, row in rows.items()})
    return found


def infer(node: Running, texts: list[str], **more: Any) -> httpx.Response:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    body = json.dumps({"inputs": [tensor], **more})
    return httpx.post(f"{node.url}/v2/models/embeds/infer", content=body, timeout=PATIENCE_S)


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def close(found: Any, expected: dict[str, np.ndarray], texts: list[str]) -> None:
    """Sums of at most 24 numbers in float32, in another order."""
    np.testing.assert_allclose(
        found, np.concatenate([expected[text] for text in texts]), rtol=1e-5, atol=1e-6
    )


def test_texts_are_answered_as_onnxruntime_answers_their_tokens(
    node: Running, expected: dict[str, np.ndarray]
) -> None:
    """One text, or several of different lengths: a row each, without padding."""
    for texts in ([TEXTS[0]], [TEXTS[1]], TEXTS, TEXTS[::-1]):
        close(vectors(infer(node, texts)), expected, texts)


def test_requests_of_many_clients_run_together_and_are_not_mixed(
    node: Running, expected: dict[str, np.ndarray]
) -> None:
    """Their tokens are batched as those of arrays."""
    asked = [TEXTS[i % len(TEXTS) :] + TEXTS[: i % len(TEXTS)] for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for texts, answer in zip(asked, pool.map(lambda texts: infer(node, texts), asked), strict=True):
            close(vectors(answer), expected, texts)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_the_clients_of_triton_send_texts(node: Running, expected: dict[str, np.ndarray], kind: str) -> None:
    """[serve.clients] as binary tensors over REST, and over gRPC."""
    client = pytest.importorskip(f"tritonclient.{kind}", reason="Triton's client is not installed")
    url = str(node.grpc) if kind == "grpc" else node.address
    tensor = client.InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
    one = client.InferenceServerClient(url)
    try:
        close(one.infer("embeds", [tensor]).as_numpy("sentence_embedding"), expected, TEXTS)
    finally:
        one.close()


def test_metadata_describes_the_text_and_the_arrays(node: Running) -> None:
    """A client finds both ways to ask; in Triton's form each input is optional."""
    about = httpx.get(f"{node.url}/v2/models/embeds", timeout=PATIENCE_S).json()
    arrays = [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in INPUTS]
    assert about["inputs"] == [*arrays, {"name": "text", "datatype": "BYTES", "shape": [-1]}]
    config = httpx.get(f"{node.url}/v2/models/embeds/config", timeout=PATIENCE_S).json()
    assert [one["optional"] for one in config["input"]] == [True] * 4
    schema = httpx.get(f"{node.url}/openapi.json", timeout=PATIENCE_S).json()["components"]["schemas"]
    assert len(schema["InferRequest"]["properties"]["inputs"]["oneOf"]) == 1 + 3


def test_a_text_that_cannot_be_read_is_refused_with_the_reason(node: Running) -> None:
    """And so is a text beside arrays: nobody could say which of them counts."""
    for texts, why in ((["good " * 30], "at most 24"), ([TEXTS[0], "a" * 999], "at most 384"), ([], "text")):
        refused = infer(node, texts)
        assert (refused.status_code, why in refused.text) == (400, True), refused.text
    ids = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [1]}
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["movie"]}
    url = f"{node.url}/v2/models/embeds/infer"
    refused = httpx.post(url, json={"inputs": [ids, text]}, timeout=PATIENCE_S)
    assert refused.status_code == 400
    assert "takes attention_mask, input_ids, token_type_ids or text;" in refused.text


def test_without_a_tokenizer_the_error_says_what_to_do(tmp_path: Path) -> None:
    """Serve the tokenizer's files too, or send tokens."""
    with served(model_in(tmp_path / "bare", is_text=False)) as node:
        refused = infer(node, [TEXTS[0]])
        assert refused.status_code == 400
        assert "with the tokenizer.json and config.json of the model beside its file" in refused.text
        about = httpx.get(f"{node.url}/v2/models/embeds", timeout=PATIENCE_S).json()
        assert [one["name"] for one in about["inputs"]] == [*INPUTS]


def test_an_upstream_without_a_tokenizer_answers_the_tokens(
    path: Path, tmp_path: Path, expected: dict[str, np.ndarray]
) -> None:
    """The node that was asked has tokenized the text already; an older upstream takes no texts."""
    local, upstream = (compile(one, threads=1) for one in (path, model_in(tmp_path / "bare", is_text=False)))
    local.text_reader = open_onnx_text(path, local.inputs)
    with (
        running(upstream, name="up", **fixed((0, 1e-6), (1000, 1e-3))) as up,
        running(local, name="end", upstreams=(up.url,), **fixed((0, 50.0), (1000, 60.0))) as end,
    ):
        until(lambda: target_of(end, 5) == up.url)
        answer = infer(end, TEXTS)
        close(vectors(answer), expected, TEXTS)
        assert answer.json()["parameters"]["endpoint"] == "up"


def test_a_compiled_directory_reads_texts_too(path: Path, tmp_path: Path, expected: Any) -> None:
    """By the tokenizer that `pliant compile` copies into it: texts are padded to its length, and masked."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    dims = ["batch=1", "tokens=24"]
    write_compiled(CompileArguments(model=str(path), output=tmp_path / "embeds", dim=dims, threads=2))
    with served(tmp_path / "embeds", learn_s=0.3, compute_workers=2) as node, ThreadPoolExecutor(8) as pool:
        asked = [TEXTS[i % len(TEXTS) :] + TEXTS[: i % len(TEXTS)] for i in range(40)]
        for texts, answer in zip(asked, pool.map(lambda texts: infer(node, texts), asked), strict=True):
            close(vectors(answer), expected, texts)
        refused = infer(node, ["good " * 30])
        assert (refused.status_code, "at most 24" in refused.text) == (400, True), refused.text

        def embed(given: Any) -> Any:
            body = {"model": "embeds", "input": given}
            return httpx.post(f"{node.url}/v1/embeddings", json=body, timeout=PATIENCE_S)

        found = embed(TEXTS).json()
        close([one["embedding"] for one in found["data"]], expected, TEXTS)
        assert found["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(text).ids) for text in TEXTS)
        given = [[1, 2, 3], [7], [5] * 24]
        found = embed(given).json()
        for tokens, one in zip(given, found["data"], strict=True):
            wanted = TABLE[tokens].mean(axis=0) + TYPES[0]
            np.testing.assert_allclose(one["embedding"], wanted, rtol=1e-5, atol=1e-6)
        assert found["usage"]["prompt_tokens"] == 28
        refused = embed([7] * 25)
        assert (refused.status_code, "at most 24 tokens" in refused.text) == (400, True), refused.text


def test_only_outputs_with_a_row_for_each_text_allow_several() -> None:
    """Else nobody could tell which part of an output is of which text."""
    ids, text = Port("input_ids", "int64", ("batch", "tokens")), Port("text", "bytes", (1,))
    for dims, shape in ((("batch", 8), (-1,)), (("batch", "tokens", 8), (-1,)), ((4, 8), (1,)), ((), (1,))):
        outputs = (Port("y", "float32", dims),)
        ways = (frozenset({"input_ids"}), frozenset({"text"}))
        model = Signature("x", "onnx", (ids, text), outputs, ways, is_tokenized=True)
        assert model.shown_shape(text) == shape
