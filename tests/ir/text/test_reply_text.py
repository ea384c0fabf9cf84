"""How a reply shows itself: at a prompt, printed, and in a notebook."""

from typing import Any

import numpy as np
import pytest

from pliant.ir.reply import Reply

LOGITS = np.array([[-2.0, 3.0]], np.float32)
LABELLED: dict[str, Any] = {"label": "positive", "score": 0.9933, "scores": (0.0067, 0.9933)}


def classified(**more: Any) -> Reply[None]:
    return Reply({"logits": LOGITS}, "sst2", 0.0031, None, 7, **LABELLED, **more)


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (classified(), "positive (0.993), 3.1 ms, accuracy not measured"),
        (
            classified(target_s=0.02, accuracy=0.924),
            "positive (0.993), 3.1 ms of 20 ms (met), accuracy 92.4 % expected",
        ),
        (classified(target_s=0.003), "positive (0.993), 3.1 ms of 3 ms (MISSED), accuracy not measured"),
        (
            Reply({"vector": np.full((1, 384), 0.25, np.float32)}, "e", 0.5, None),
            "vector of 384: [0.2500, 0.2500, 0.2500, 0.2500, ...], 500 ms, accuracy not measured",
        ),
        (
            Reply({"y": np.arange(3), "t": np.array([b"yes"], object)}, "m", 1.5, None),
            "y int64[3]: [0, 1, 2]; t bytes[1]: [yes], 1.5 s, accuracy not measured",
        ),
    ],
)
def test_a_reply_is_one_line(reply: Reply[None], line: str) -> None:
    """At a prompt it was a dump of every field, pages long for an elastic model with its spans."""
    assert str(reply) == line
    assert repr(reply) == f"<Reply: {line}>"


def test_a_model_of_many_outputs_still_fits_a_line() -> None:
    """The first few say what kind of answer it is."""
    reply = Reply({f"y{i}": np.zeros(1) for i in range(30)}, "m", 1.0, None)
    assert "y3 float64[1]: [0.0000]; 26 more, 1 s" in str(reply)


def test_a_notebook_shows_a_table_with_what_stands_in_the_line() -> None:
    """Labels come from a file somebody else wrote: they are text there, never markup."""
    page = classified(target_s=0.02)._repr_html_()
    for part in ("positive (0.993)", "3.1 ms of 20 ms (met)", "not measured", "sst2"):
        assert part in page
    reply = Reply({}, "m", 1.0, None, label="<script>", score=0.5)
    assert "&lt;script&gt;" in reply._repr_html_()
