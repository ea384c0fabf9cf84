"""What an endpoint is asked and answers."""

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.curve import Curve, line
from pliant.ir.endpoint import Endpoint, Estimate, Request, ServiceLevel
from pliant.ir.reply import Reply


class Echo:
    """An endpoint in memory."""

    name = "echo"
    best = None

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        return line(0.0, 0.001, 10)

    def levels(self) -> tuple[ServiceLevel, ...]:
        return (ServiceLevel(self.curve()),)

    def estimate(self, request: Request) -> Estimate:
        return Estimate(self.curve(request.accuracy_floor or 0.0).at(request.length))

    def answer(self, request: Request) -> Reply[None]:
        return Reply({"length": np.array([request.length])}, self.name, 0.001, None)


def test_whatever_has_the_six_is_an_endpoint() -> None:
    """Nobody inherits."""
    echo = Echo()
    assert isinstance(echo, Endpoint)
    assert echo.estimate(Request(5, "five words")).seconds == pytest.approx(0.005)
    assert echo.answer(Request(5, "five words")).outputs["length"].item() == 5


@pytest.mark.parametrize(
    "bad",
    [
        {"length": -1},
        {"text": None},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"accuracy_floor": 1.5},
        {"accuracy_floor": float("nan")},
    ],
)
def test_a_request_that_cannot_be_is_refused(bad: dict[str, object]) -> None:
    """Before it waits in a queue."""
    with pytest.raises(InputError):
        Request(**{"length": 3, "text": "x", **bad})  # type: ignore[arg-type]
