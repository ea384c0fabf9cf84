"""Columns in, columns out: on a batch in this process, and on actors of Ray Data of which one is killed."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pliant
from pliant.errors import InputError
from tests.models.onnx_models import parse

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray import Predictor  # noqa: E402

pytestmark = pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*")  # of Ray's own options
TEXTS = [f"{'a dull and' if i % 3 else 'a charming'} film, number {i}" for i in range(96)]


def test_a_batch_has_the_answers_of_the_session(tmp_path: Path) -> None:
    """Row by row what `pliant.open` answers, beside the columns that were there."""
    texts = TEXTS[:10]
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
    with pytest.raises(InputError, match=r"row 1 of the batch has None in 'text', which is no text"):
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


class Fragile:
    """A predictor whose actor is killed at the first sight of one row."""

    def __init__(self, marker: str) -> None:
        self._predictor, self._marker = Predictor("sst2"), Path(marker)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if 40 in batch["id"] and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._predictor(batch) | {"process": np.full(len(batch["id"]), os.getpid())}


def test_rows_of_a_killed_actor_are_repeated_once(cluster: Path) -> None:
    """Every row is answered once, and as in one process; the actor is replaced."""
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False
    marker = cluster / "killed"
    data = ray.data.from_items(
        [{"id": i, "text": text} for i, text in enumerate(TEXTS)], override_num_blocks=8
    )
    found = data.map_batches(
        Fragile, fn_constructor_args=(str(marker),), batch_size=8, compute=ActorPoolStrategy(size=2)
    ).take_all()
    assert marker.exists()
    rows = sorted(found, key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(len(TEXTS)))
    alone = Predictor("sst2")({"text": np.array(TEXTS, object)})
    assert [row["label"] for row in rows] == alone["label"].tolist()
    np.testing.assert_allclose([row["logits"] for row in rows], alone["logits"], rtol=1e-4, atol=1e-5)
