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
