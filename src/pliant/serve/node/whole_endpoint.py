"""An endpoint for a model that has one way to answer."""

import time
from collections.abc import Callable
from typing import Literal, final

from pliant.errors import BudgetError
from pliant.ir.endpoint import Estimate, Reply, Request
from pliant.ir.times.fit import FitSettings, LocalTimes
from pliant.ir.times.time_curve import TimeCurve
from pliant.serve.protocol.text_tensors import Tensors

_UNKNOWN = TimeCurve(((0, 0.0),))
"""What takes nobody knows how long: it is tried."""


@final
class Whole:
    """An `Endpoint` of `answer`, whose times are fitted as they come: a polynomial of `degree` by length.

    `prior` is what is known before the first. Its accuracy was never measured, so it promises none:
    BudgetError for any floor above 0. With `dilation` it emulates a slower device: after each answer the
    thread sleeps (dilation - 1) times what that took.
    """

    best = None

    def __init__(
        self,
        name: str,
        answer: Callable[[Request], Tensors],
        max_length: int,
        degree: Literal[1, 2],
        dilation: float = 1.0,
        prior: TimeCurve | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._answer, self._dilation = answer, dilation
        self._clock, self._sleep = clock, sleep
        self._settings, self._max_length = FitSettings(degree=degree), max_length
        self.expect(prior)

    def expect(self, prior: TimeCurve | None) -> None:
        """From now on it takes about `prior`: what came before was measured under other conditions."""
        self._times = LocalTimes(self._settings, self._max_length, prior)

    def curve(self, accuracy_floor: float = 0.0) -> TimeCurve:
        """Seconds by length, as measured lately. Raises BudgetError."""
        if accuracy_floor > 0.0:
            raise BudgetError(
                f"the accuracy of {self.name} was never measured, so no floor of {accuracy_floor:g} is "
                "promised: leave it out."
            )
        return self._times.curve or _UNKNOWN

    def estimate(self, request: Request) -> Estimate:
        """Quick, and safe beside a `run` on another thread. Raises BudgetError for a floor."""
        return Estimate(self.curve(request.accuracy_floor or 0.0).at(request.length))

    def run(self, request: Request) -> Reply:
        """The answer, under any deadline. Raises BudgetError for a floor, and what `answer` raises."""
        self.curve(request.accuracy_floor or 0.0)
        start_s = self._clock()
        outputs = self._answer(request)
        if self._dilation > 1.0:
            self._sleep((self._dilation - 1.0) * (self._clock() - start_s))
        seconds = self._clock() - start_s
        self._times.add(request.length, seconds)
        return Reply(outputs, self.name, seconds, whole_s=seconds)
