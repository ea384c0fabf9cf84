"""A text graph from ONNX gives embeddings of tokens, and of texts where its tokenizer lies beside it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pliant.api.compile_onnx import compile
from pliant.cli.shared.model_arguments import ModelArguments
from pliant.ir.port import Port
from pliant.models.onnx.onnx_text import open_onnx_text
from pliant.serve.openai.embedders import embedder
from pliant.serve.protocol.signature import Signature
from pliant.serve.repository.model_entry import ModelEndpoints
from tests.serve.nodes import Running, running, running_models
from tests.tiny import VOCAB, tiny_spec, write_model

openai = pytest.importorskip("openai", reason="openai's client is not installed")
TABLE = np.random.default_rng(0).standard_normal((VOCAB, 8)).astype(np.float32)
TYPES = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def text_graph() -> onnx.ModelProto:
    """The mean of the tokens' vectors, each with that of its type, of those that the mask counts."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["kinds"]),
        helper.make_node("Add", ["words", "kinds"], ["both"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["both", "wide"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "middle"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "middle"], ["n"], keepdims=1),
        helper.make_node("Div", ["sums", "n"], ["sentence_embedding"]),
    ]
    constants = {"table": TABLE, "types": TYPES, "last": np.array([2]), "middle": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "embeds",
        [helper.make_tensor_value_info(x, TensorProto.INT64, ["batch", "tokens"]) for x in INPUTS],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("onnx") / "embeds.onnx"
    onnx.save(text_graph(), path)
    session = compile(path, threads=1)
    with (
        running(session) as node,
        openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_tokens_become_the_vectors_of_the_graph(client: Any) -> None:
    """[serve.clients] whole inputs of one text each: no token is padding, all are of the first text."""
    given = [[1, 2, 3], [49], [7] * 20]
    found = client.embeddings.create(model="embeds", input=given)
    for tokens, one in zip(given, found.data, strict=True):
        np.testing.assert_allclose(one.embedding, TABLE[tokens].mean(axis=0) + TYPES[0], rtol=1e-5, atol=1e-6)
    assert found.usage.prompt_tokens == 24


def test_a_graph_without_a_tokenizer_says_that_it_reads_tokens(client: Any) -> None:
    """Nobody can guess how a text is cut for it."""
    with pytest.raises(openai.BadRequestError, match="send lists of tokens"):
        client.embeddings.create(model="embeds", input="a text")


def _serve(path: Path) -> Any:
    return running_models([ModelArguments(source=str(path), threads=1).entry(ModelEndpoints())])


def _client(node: Running) -> Any:
    return openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0)


def test_texts_become_the_vectors_of_the_tokens_that_transformers_gives(tmp_path: Path) -> None:
    """[serve.clients] and those of `pliant run`, which reads texts by the same files."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = write_model(tmp_path / "bert", tiny_spec("bert"))
    path = folder / "embeds.onnx"
    onnx.save(text_graph(), path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    given = ["a good film", "It is not bad, but the plot was!", "movie"]
    with compile(path, threads=1) as session:
        text = open_onnx_text(path, session.inputs)
        assert text is not None
        ours = [session.run(text.feeds(one))["sentence_embedding"][0] for one in given]
    with _serve(path) as node, _client(node) as client:
        found = client.embeddings.create(model="embeds", input=given)
        tokens = [theirs(one)["input_ids"] for one in given]
        for ids, run, one in zip(tokens, ours, found.data, strict=True):
            np.testing.assert_allclose(one.embedding, run, rtol=1e-6)
            wanted = TABLE[ids].mean(axis=0) + TYPES[0]
            np.testing.assert_allclose(one.embedding, wanted, rtol=1e-5, atol=1e-6)
        assert found.usage.prompt_tokens == sum(map(len, tokens))
        of_tokens = client.embeddings.create(model="embeds", input=tokens)
        assert [one.embedding for one in of_tokens.data] == [one.embedding for one in found.data]
        for text_, why in (("good " * 30, "reads at most 24"), (" ", "empty"), ("a" * 999, "at most 384")):
            with pytest.raises(openai.BadRequestError, match=why):
                client.embeddings.create(model="embeds", input=text_)


def test_a_damaged_tokenizer_leaves_the_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node served such a model before it read texts; its log says what is wrong."""
    (tmp_path / "tokenizer.json").write_text("{}")
    onnx.save(text_graph(), tmp_path / "embeds.onnx")
    with caplog.at_level(logging.WARNING, "pliant.serve"), _serve(tmp_path / "embeds.onnx") as node:
        assert "embeds reads no texts" in caplog.text
        with _client(node) as client:
            assert len(client.embeddings.create(model="embeds", input=[1, 2]).data) == 1
            with pytest.raises(openai.BadRequestError, match=r"tokenizer\.json"):
                client.embeddings.create(model="embeds", input="a text")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((Port("pixels", "int64", (1, None)),), (Port("y", "float32", (1, 8)),)),
        ((Port("ids", "int64", (1, None)),), (Port("states", "float32", (1, None, 8)),)),
        ((Port("ids", "int64", (1, None)),), (Port("y", "float32", (1, None)),)),
        (
            (Port("ids", "int64", (1, None)), Port("more", "float32", (1, None))),
            (Port("y", "float32", (1, 8)),),
        ),
        ((Port("mask", "int64", (1, None)),), (Port("y", "float32", (1, 8)),)),
    ],
    ids=["no text", "a state of each token", "no width", "another input", "no tokens"],
)
def test_other_graphs_give_no_embeddings(inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
    """Nothing is guessed of how states become one vector, or what an unknown input wants."""
    ways = (frozenset(port.name for port in inputs),)
    assert embedder(Signature("x", "onnx", inputs, outputs, ways)) is None
