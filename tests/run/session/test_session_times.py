"""A session of one way as an endpoint: its times are learned, and it promises no accuracy."""

from typing import Any

import numpy as np
import pytest

import pliant
from pliant.errors import BudgetError, InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Endpoint, Request
from pliant.run.session.text_feeds import AnswerArrays
from tests.models.onnx_models import parse
from tests.serve.models import Fake

RELU = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")


class Slow(Fake):
    """A model that takes a millisecond an item, by its own clock."""

    name, degree, max_length = "slow", 1, 100

    def __init__(self, slower: float = 1.0) -> None:
        super().__init__(Dilation(slower), self.clock, self.sleep)
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def request(self, feeds: AnswerArrays) -> Request:
        return Request(1, tensors=feeds)

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return {"n": np.array([length])}

    def close(self) -> None:
        pass

    def _answer(self, request: Request) -> AnswerArrays:
        self.now_s += 1e-3 * request.length
        return {"n": np.array([request.length])}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def test_what_it_will_take_is_what_it_took() -> None:
    """At lengths that came, and between."""
    endpoint = Slow()
    assert isinstance(endpoint, Endpoint)
    assert endpoint.estimate(Request(50, "x")).seconds == 0.0  # nobody knows: it is tried
    for n in (10, 20, 40, 80) * 8:
        reply = endpoint.answer(Request(n, "x", deadline_s=1e-6))
        assert reply.outputs["n"].item() == n
        assert (reply.seconds, reply.whole_s) == pytest.approx((1e-3 * n, 1e-3 * n))
        assert reply.accuracy is None
    for n in (10, 50, 80):
        assert endpoint.estimate(Request(n, "x")).seconds == pytest.approx(1e-3 * n, rel=1e-3)
        assert endpoint.curve().at(n) == pytest.approx(1e-3 * n, rel=1e-3)


def test_a_slower_device_is_emulated_by_sleep() -> None:
    """As `--dilate` says, whatever the model is."""
    slow = Slow(5.0)
    assert slow.answer(Request(10, "x")).seconds == pytest.approx(0.05)
    assert slow.slept_s == pytest.approx([0.04])


@pytest.mark.parametrize("source", ["random:gru-300", RELU], ids=["recurrent", "onnx"])
def test_a_dilated_session_is_slow_however_it_is_asked(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pliant.open` takes the dilation of any model; one that only nodes saw would be measured wrongly."""
    slept_s: list[float] = []
    monkeypatch.setattr("pliant.run.session.session.time.sleep", slept_s.append)
    with pliant.open(source, threads=1, dilation=Dilation(3.0)) as session:
        feeds = session.sample(4)
        session.run(feeds)
        session.answer(session.request(feeds))
        session(feeds.get("x", "a good film"))
    assert len(slept_s) == 3
    assert min(slept_s) > 0.0
    with pytest.raises(InputError, match="its dilation is of `compute` alone, not Dilation"):
        pliant.open(source, threads=1, dilation=Dilation(3.0, io=2.0))


def test_no_accuracy_is_promised() -> None:
    """A floor is refused before anything runs; none at all is no floor."""
    endpoint = Slow()
    assert endpoint.best is None
    for ask in (endpoint.answer, endpoint.estimate):
        with pytest.raises(BudgetError, match="never measured"):
            ask(Request(10, "x", accuracy_floor=0.5))
        ask(Request(10, "x", accuracy_floor=0.0))
    with pytest.raises(BudgetError, match="never measured"):
        endpoint.curve(0.5)
    assert endpoint.now_s == pytest.approx(0.01)
