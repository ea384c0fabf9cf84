"""What an elastic session takes for a text by name."""

from typing import Any

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.run.conftest import OpenElastic
from tests.run.submodel.test_elastic_session import TEXT


@pytest.mark.parametrize(
    "text",
    [TEXT, TEXT.encode(), [TEXT], [TEXT.encode()], np.array([TEXT]), np.array([TEXT.encode()], object)],
)
def test_a_text_is_fed_as_str_or_bytes(elastic_session: OpenElastic, text: Any) -> None:
    """One of either, alone or in a list: it is what `text` BYTES [1] says."""
    with elastic_session(SessionOptions(10.0, length=8)) as session:
        np.testing.assert_array_equal(session.run({"text": text})["logits"][0], session(TEXT).logits)


@pytest.mark.parametrize("text", [[TEXT.encode()] * 2, [TEXT] * 2, [], [[TEXT]], None, 3, {}])
def test_anything_but_one_text_is_refused_as_a_feed(elastic_session: OpenElastic, text: Any) -> None:
    """Of two texts as bytes the first was answered, and nothing was said of the second."""
    with (
        elastic_session(SessionOptions(10.0, length=8)) as session,
        pytest.raises(InputError, match=r"`text` is .*; give"),
    ):
        session.run({"text": text})


def test_outputs_are_written_into_the_arrays_given(elastic_session: OpenElastic) -> None:
    """Logits and the label; outputs that are not given are returned as ever."""
    into, label = np.empty((1, 2), np.float32), np.empty(1, object)
    with elastic_session(SessionOptions(10.0, length=8)) as session:
        want = session.run({"text": TEXT})
        found = session.run({"text": TEXT}, {"logits": into})
        assert found["logits"] is into
        np.testing.assert_array_equal(into, want["logits"])
        assert found["label"] == want["label"]
        assert session.run({"text": TEXT}, {"label": label})["label"] is label
        assert label == want["label"]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("logits", np.empty((4, 2), np.float32)),  # one answer filled all four rows
        ("logits", np.empty((1, 2), np.int64)),  # and lost its fractions here
        ("logits", np.empty((1, 3), np.float32)),
        ("logits", np.empty((2, 2), np.float32)[::2, ::-1]),
        ("label", np.empty(1, np.float32)),
        ("label", np.empty(3, object)),
    ],
)
def test_an_array_that_an_output_does_not_fit_is_refused(
    elastic_session: OpenElastic, name: str, array: np.ndarray
) -> None:
    """As in sessions on arrays: numpy would broadcast and cast, or raise an error of its own."""
    with (
        elastic_session(SessionOptions(10.0, length=8)) as session,
        pytest.raises(InputError, match=f"'?{name}'?.* must be "),
    ):
        session.run({"text": TEXT}, {name: array})
