"""Models as a node opens them: each answers through HTTP as it does by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import pliant
from pliant.api.open_endpoint import open_endpoint
from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.recurrent.recurrent_source import RecurrentSource, random_recurrent
from pliant.models.spec import tensor_shapes
from pliant.models.tokenizer import TokenizedInput, open_tokenizer
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import AnswerArrays
from tests.reference_model import run_model
from tests.serve.models import Upper, texts
from tests.serve.nodes import PATIENCE_S, running

TEXT = "a charming and often affecting journey"


def opened(source: str) -> Session[Any]:
    return open_endpoint(source, threads=1)


def asked(url: str, name: str, tensor: dict[str, object]) -> httpx.Response:
    return httpx.post(f"{url}/v2/models/{name}/infer", json={"inputs": [tensor]}, timeout=PATIENCE_S)


def test_a_recurrent_classifier_answers_text_and_words_alike() -> None:
    """`imdb-lstm`, the model that routing is measured with."""
    alone = pliant.open("imdb-lstm", threads=1)
    expected, ids = alone(TEXT), alone.encode(TEXT).ids
    with running(opened("imdb-lstm")) as node:
        text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
        words = {"name": "ids", "shape": [1, len(ids)], "datatype": "INT64", "data": ids.tolist()}
        for tensor in (text, words):
            logits, label = asked(node.url, "imdb-lstm", tensor).json()["outputs"]
            np.testing.assert_allclose(logits["data"], expected.logits, rtol=1e-6)
            assert label["data"] == [expected.label]
        none = {**words, "shape": [1, 0], "data": []}
        for wrong in ({**text, "data": [""]}, none, {**words, "data": [-1] * len(ids)}):
            response = asked(node.url, "imdb-lstm", wrong)
            assert response.status_code == 400, response.text


def test_a_text_of_far_too_many_bytes_is_not_cut_into_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """[crime.damage] 16 MB of words took 40 s on the event loop, only to be refused."""
    served = opened("imdb-lstm")
    asked: list[str] = []
    one = TokenizedInput(*np.zeros((2, 1), np.int32))
    monkeypatch.setattr(RecurrentSource, "encode", lambda _, text: asked.append(text) or one)
    assert served.request({"text": texts("good " * served.max_length)}).length == 1
    with pytest.raises(InputError, match=r"10000000 bytes; at most 262144 .* 16384 tokens"):
        served.request({"text": texts("good film " * 1_000_000)})
    assert len(asked) == 1
    served.close()


def test_an_encoder_without_labels_answers_with_its_vector() -> None:
    """CoVe's shape, whose weights are random."""
    with running(opened("random:cove-200")) as node:
        name = node.node.served.name if node.node is not None else ""
        ids = random_recurrent("cove-200").encode(TEXT).ids
        words = {"name": "ids", "shape": [1, len(ids)], "datatype": "INT64", "data": ids.tolist()}
        (vector,) = asked(node.url, name, words).json()["outputs"]
        assert vector["name"] == "vector"
        expected = pliant.open("random:cove-200", threads=1).run({"ids": ids[None]})["vector"]
        np.testing.assert_allclose(vector["data"], expected[0], rtol=1e-6)


def test_a_session_answers_text(tiny_model: Callable[..., Path]) -> None:
    """With the model's own logits, as a cluster and an ONNX file of it give them: not their log-softmax."""
    directory = tiny_model("bert", widths=(2, 4))
    served = opened(str(directory))
    with pliant.open(directory, latency="10s", threads=1) as session:
        expected = session("good film")
    assert expected.logits is not None
    request = served.request({"text": texts("good film")})
    assert request.length == expected.length
    answer = served.answer(request).outputs
    np.testing.assert_allclose(answer["logits"][0], expected.logits, rtol=1e-5)
    checkpoint = open_checkpoint(directory)
    tensors = {name: checkpoint.tensor(name) for name, _ in tensor_shapes(checkpoint.spec)}
    encoded = open_tokenizer(directory, checkpoint.spec).encode("good film")
    reference = run_model(checkpoint.spec, tensors, encoded.ids, encoded.types)
    np.testing.assert_allclose(answer["logits"][0], reference, atol=1e-4)  # float32 over two layers
    assert abs(np.exp(reference).sum() - 1.0) > 0.01  # or it could not be told from a log-softmax
    assert answer["label"].tolist() == [str(expected.label).encode()]
    for wrong in (texts(b"\xff"), texts("good " * 16 * served.max_length)):
        with pytest.raises(InputError, match="`text`"):
            served.request({"text": wrong})
    served.close()


def test_an_onnx_model_answers_arrays(tmp_path: Path) -> None:
    """Its ports are the model's own, and its length is that of the first open dimensions."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "relu me.onnx")
    served = opened(str(tmp_path / "relu me.onnx"))
    assert served.name == "relu-me"
    request = served.request({"x": np.array([[-1.0, 2.0, 3.0]], np.float32)})
    assert request.length == 3
    assert served.answer(request).outputs["y"].tolist() == [[0.0, 2.0, 3.0]]
    assert served.request(served.sample(7)).length == 7
    served.close()


def test_an_onnx_model_of_one_shape_answers_it(tmp_path: Path) -> None:
    """All its inputs are alike: an image's number of pixels is no length that could be too large."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 64, 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "image.onnx")
    served = opened(str(tmp_path / "image.onnx"))
    assert served.request(served.sample(8)).length == 1 <= served.max_length
    served.close()


def test_options_of_text_encoders_are_refused_for_other_models() -> None:
    """They were dropped: who gave them believed that they counted."""
    for given in ({"preload": "1MB"}, {"depths": "any"}):
        (name,) = given
        with pytest.raises(InputError, match=f"a recurrent model, which has no option {name}"):
            open_endpoint("imdb-lstm", threads=1, **given)  # type: ignore[arg-type]


class NotOne(Upper):
    """Takes no input of length 1, as a convolution wider than that."""

    def _answer(self, request: Request) -> AnswerArrays:
        if request.length == 1:
            raise ZeroDivisionError("too short")
        return super()._answer(request)


def test_a_node_learns_from_the_lengths_that_its_model_takes() -> None:
    """It is not known before which these are; one that failed kept the node from starting."""
    with running(NotOne(), learn_s=1e-9) as node:
        assert node.node is not None
        assert node.node.router.curve_here() is not None
        assert node.post("ab").json()["outputs"][0]["data"] == ["AB"]
