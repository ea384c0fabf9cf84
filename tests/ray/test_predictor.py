"""Columns in, columns out, without Ray around it."""

import numpy as np
import pytest

import pliant
from pliant.errors import InputError
from tests.models.onnx_models import parse

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray import Predictor

TEXTS = [f"{'a dull and' if i % 3 else 'a charming'} film, number {i}" for i in range(10)]


def test_a_batch_has_the_answers_of_the_session() -> None:
    """Row by row what `pliant.open` answers, beside the columns that were there."""
    texts = TEXTS
    found = Predictor("sst2")({"text": np.array(texts, object), "id": np.arange(10)})
    with pliant.open("sst2", preload="100MB") as session:
        replies = [session(text) for text in texts]
    assert list(found) == ["text", "id", "logits", "label", "score"]
    assert found["label"].tolist() == [reply.label for reply in replies]
    np.testing.assert_allclose(found["logits"], [reply.logits for reply in replies], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["score"], [reply.score for reply in replies], rtol=1e-4)


def test_columns_may_have_other_names_and_answers_a_prefix() -> None:
    """Data sets call their text `sentence`, and their truth `label`, which no answer may replace."""
    batch = {"sentence": np.array(["a fine film"], object), "label": np.array([1])}
    with pytest.raises(InputError, match=r"would replace the columns label: give a prefix"):
        Predictor("sst2", columns={"text": "sentence"})(batch)
    found = Predictor("sst2", columns={"text": "sentence"}, prefix="predicted_")(batch)
    assert (found["label"].tolist(), found["predicted_label"].tolist()) == ([1], ["positive"])


def test_wrong_columns_and_rows_are_named() -> None:
    """Nothing of such a batch is answered: the message says which column, or row, to look at."""
    predictor = Predictor("sst2")
    with pytest.raises(InputError, match=r"no column 'text' for 'text' of sst2: it has review"):
        predictor({"review": np.array(["a"], object)})
    with pytest.raises(InputError, match=r"row 1 of the batch has None in 'text', which is not text"):
        predictor({"text": np.array(["a", None], object)})
    with pytest.raises(InputError, match=r"columns names mask, which sst2 does not read"):
        Predictor("sst2", columns={"mask": "m"})


def test_an_empty_batch_has_no_answers() -> None:
    """Filters leave empty blocks."""
    assert list(Predictor("sst2")({"text": np.array([], object)})) == ["text"]


def test_arrays_are_answered_row_by_row() -> None:
    """Each input of an ONNX model is a column; rows of several lengths stand in a column of arrays."""
    model = parse("g (float[n, k] x) => (float[n, k] y) { y = Add (x, x) }")
    alike = Predictor(model.SerializeToString())({"x": np.arange(6, dtype=np.float32).reshape(3, 2)})
    assert alike["y"].tolist() == [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]
    ragged = np.empty(2, object)
    ragged[:] = [np.ones(2, np.float32), np.ones(3, np.float32)]
    found = Predictor(model.SerializeToString())({"x": ragged})
    assert [row.tolist() for row in found["y"]] == [[2.0, 2.0], [2.0, 2.0, 2.0]]
