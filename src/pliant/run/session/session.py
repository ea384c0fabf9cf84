"""What every session offers: it answers inputs, says what that takes, and can be asked as an endpoint."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, overload

import numpy as np

from pliant.errors import BudgetError, InputError
from pliant.ir.curve import Curve
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import ALIKE, Estimate, Request, ServiceLevel
from pliant.ir.port import Port
from pliant.ir.reply import Reply
from pliant.ir.times.fit import FitSettings, LocalTimes
from pliant.ir.times.levels import BoundedLevel
from pliant.kernels.runtime.turns import Turns
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.memory_use import MemoryUse
from pliant.run.session.feeds import GivenFeeds
from pliant.run.session.ports import Feeds, by_name

if TYPE_CHECKING:
    from pliant.run.session.step_profile import StepProfile

D = TypeVar("D", covariant=True)
_UNKNOWN = Curve(((0, 0.0),))
"""What takes nobody knows how long: it is tried."""


class Session(ABC, Generic[D]):
    """A model that is open: a context manager, an `Endpoint`, and safe to share by threads.

    Threads take turns. A session cannot be pickled; after `fork` the child may use it, on threads of its
    own, unless its class says otherwise. `close` waits for the answer under way; afterwards InputError.

    `identity` is the content hash of the model. A request brings the inputs of one of `ways`, no others.
    `max_length` items are read of one input at most. Time grows with the length as a polynomial of `degree`:
    2 for attention, 1 for recurrence.

    The methods here are those of a session that has one way to answer: its times are fitted as they come,
    and it promises no accuracy. `expect` gives what is known before.
    """

    platform: ClassVar[str]
    """What the Open Inference Protocol calls this kind of session."""
    degree: ClassVar[Literal[1, 2]] = 2
    name: str
    identity: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    labels: tuple[str, ...] | None = None
    max_length: int

    def __init__(
        self,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds),  # looked up when it is called
    ) -> None:
        """With a `dilation`, a slower device is emulated: each run takes as many times as long."""
        self.dilation, self._clock = dilation, clock
        self._emulated = EmulatedDevice(dilation, clock=clock, sleep=sleep)
        self._times: LocalTimes | None = None
        self._level = BoundedLevel()
        self._timing = Turns()
        self._loaded_s = 0.0
        self._after_loading: tuple[Curve, float, Curve] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a session holds threads and memory of its process and cannot be pickled or copied: open the "
            "model in the process that runs it."
        )

    # What users ask

    @overload
    def __call__(
        self, value: list[str] | list[tuple[str, str]], /, *more: Any, **options: Any
    ) -> list[Reply[D]]: ...

    @overload
    def __call__(self, value: Any, /, *more: Any, **options: Any) -> Reply[D]: ...

    @abstractmethod
    def __call__(self, value: Any, /, *more: Any, **options: Any) -> Reply[D] | list[Reply[D]]:
        """The reply to one input; text sessions take several texts as well, and give a list."""

    @overload
    def run(self, feeds: GivenFeeds, out: Feeds | None = None) -> dict[str, Any]: ...

    @overload
    def run(self, feeds: Sequence[str] | None, out: GivenFeeds) -> list[Any]: ...

    def run(
        self, feeds: GivenFeeds | Sequence[str] | None, out: GivenFeeds | None = None
    ) -> dict[str, Any] | list[Any]:
        """Outputs by name, for feeds by name; those of `out` are written into the arrays given there.

        A feed is a numpy array, another library's tensor, or a list of numbers; run/session/feeds.py says
        what is cast. A sequence is a list of arrays, an optional value that is absent None. As onnxruntime's
        users write it, `run(names or None, feeds)` gives a list. Raises
        InputError naming a feed that is missing, unknown, or of the wrong type or shape, and a size larger
        than the model takes; GraphError when the model cannot be compiled for these shapes.
        """
        given, into, names = by_name(feeds, out, self.outputs)
        results = self._run(given, into)
        return results if names is None else [results[y] for y in names]

    @property
    @abstractmethod
    def plan(self) -> Any:
        """What would run, and why; it prints as a page, and shows as a picture in a notebook."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of weights that this process holds for the session."""

    @property
    @abstractmethod
    def memory(self) -> MemoryUse:
        """What the session adds to its process, predicted beside measured; it prints as a table."""

    @abstractmethod
    def explain(self, length: int) -> Any:
        """The plan for inputs of `length` items, made ready now; it prints as `plan` does."""

    @abstractmethod
    def profile(self, feeds: GivenFeeds, runs: int = 20) -> "StepProfile":
        """Where the time of a run goes, step by step, over `runs` runs after one that is not counted.

        The feeds are one of `ways`, as `run` takes them. Raises InputError as `run` does, and below 1 run.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and memory, after the answer under way; safe to call twice."""

    def retarget(self, *args: Any, **options: Any) -> None:
        """Change the latency or the memory that the session was opened with, and plan anew.

        Raises InputError for a session with one way to answer, and BudgetError, changing nothing, where no
        plan meets them.
        """
        raise InputError(
            f"{self.name} has one way to answer, so there is nothing to retarget: open a text encoder "
            "(docs/sources.md) to choose latency and memory."
        )

    def get_inputs(self) -> list[Port]:
        """The inputs, as onnxruntime's users ask for them: each has `name`, `type` and `shape`."""
        return list(self.inputs)

    def get_outputs(self) -> list[Port]:
        """The outputs, likewise."""
        return list(self.outputs)

    # What nodes ask

    @property
    def ways(self) -> tuple[frozenset[str], ...]:
        """The sets of inputs of which a request brings one."""
        return (frozenset(port.name for port in self.inputs),)

    @abstractmethod
    def request(self, feeds: Mapping[str, np.ndarray]) -> Request:
        """The request that these arrays make: how long the input is. Quick; raises InputError."""

    @abstractmethod
    def sample(self, length: int) -> dict[str, np.ndarray]:
        """Feeds of an input of about so many items: what is timed."""

    @property
    def max_items(self) -> int:
        """What the open dimensions of an input multiply to at most: its length, for nearly all."""
        return self.max_length

    @property
    def best(self) -> float | None:
        """The accuracy that inputs of any length can have; None where it was never measured."""
        return None

    @property
    def loading_s(self) -> float:
        """What the next answer spends on loading the model first: 0 where it is in memory."""
        return 0.0

    def expect(self, prior: Curve | None) -> None:
        """From now on answers take about `prior`: what came before was measured under other conditions."""
        self._times = LocalTimes(FitSettings(degree=self.degree), self.max_length, prior)
        self._level = BoundedLevel()

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by length of answers at least that accurate, as measured lately. Raises BudgetError."""
        if accuracy_floor > 0.0 and self.best is None:
            raise BudgetError(
                f"the accuracy of {self.name} was never measured, so no floor of {accuracy_floor:g} is "
                "promised: leave it out."
            )
        if self.best is not None and accuracy_floor > self.best + ALIKE:
            raise BudgetError(
                f"{self.name} has an accuracy of {self.best:.4f} at most, not {accuracy_floor:g}: lower the "
                "floor."
            )
        return self._expected

    def look_again(self) -> None:
        """Bring `levels` up to date with devices that came or went; may take as long as planning does."""

    def reconsider(self) -> bool:
        """Count on devices as measured, whatever the latest answers showed, until an answer shows it again.

        Call it before a probe. Returns whether a probe may find this endpoint quicker than it looks.
        """
        return True

    def levels(self) -> tuple[ServiceLevel, ...]:
        """The accuracies that it can give now, worst first; the same tuple until they change."""
        return self._level.at(self._expected, self.best)

    def estimate(self, request: Request) -> Estimate:
        """What `answer` would take now; quick, and safe beside it on another thread. Raises BudgetError."""
        seconds = self.curve(request.accuracy_floor or 0.0).at(request.length)
        return Estimate(seconds, self.best, max(seconds, self.levels()[-1].bound_curve.at(request.length)))

    def answer(self, request: Request) -> Reply[D]:
        """The reply to a request, under any deadline. Raises BudgetError for a floor, and what `run` does."""
        self.curve(request.accuracy_floor or 0.0)
        start_s = self._clock()
        reply = self._reply(request)
        seconds = self._clock() - start_s
        with self._timing.lock:
            loaded_s, self._loaded_s = self._loaded_s, 0.0
            whole_s = max(0.0, seconds - loaded_s)
            self._took(request.length, whole_s)
        return replace(reply, seconds=seconds, whole_s=whole_s)

    @property
    def most_together(self) -> int:
        """How many requests run together at most, in one batch or in `most_beside`."""
        return 1

    @property
    def most_items_together(self) -> float:
        """How many items they have at most, all together."""
        return inf

    def together(self, request: Request) -> Hashable | None:
        """Requests of equal keys run together in `answers`; None for one that gains nothing by company."""
        return None

    def answers(self, requests: Sequence[Request]) -> list[Reply[D]]:
        """The replies to requests of one key, run together: what `answer` gives, up to rounding.

        `seconds` of each reply are those of all of them. Raises what the run of any of them does.
        """
        return [self.answer(request) for request in requests]

    @property
    def most_beside(self) -> int:
        """How many calls of `answers_beside` run at the same time; 1 where they take turns."""
        return 1

    @property
    def pace_beside(self) -> float:
        """What one request takes in such a call, as a multiple of what `answer` takes."""
        return 1.0

    def answers_beside(self, requests: Sequence[Request]) -> list[Reply[D]]:
        """As `answers`, on as many threads as are left where `most_beside` calls run at the same time."""
        return self.answers(requests)

    def prepare_together(self, length: int) -> bool:
        """Make ready what runs requests of about this length together, which may take seconds.

        Returns whether there is such a thing, so that `together` gives them a key from now on.
        """
        return False

    def traced(self, request: Request) -> Reply[Any]:
        """As `answer`, with details that tell when each step of this run ran: `program` and `spans`.

        Where `answer` gives none they are a `Profile` of the run (run/session/call_profile.py). Its clock is
        read between kernel calls, so that such answers are no measure of what others take.
        """
        return self.answer(request)

    @property
    def _loaded(self) -> Curve:
        """What answers take, as measured lately, once the model is in memory."""
        return (None if self._times is None else self._times.curve) or _UNKNOWN

    @property
    def _expected(self) -> Curve:
        """What the next answer takes: it loads the model first where that is not in memory."""
        curve, loading_s = self._loaded, self.loading_s
        if not loading_s:
            return curve
        if self._after_loading is None or self._after_loading[:2] != (curve, loading_s):
            self._after_loading = curve, loading_s, curve.plus(loading_s)
        return self._after_loading[2]

    def _took(self, length: int, seconds: float) -> None:
        """An answer to an input of that length took so long, apart from loading; under the lock."""
        if self._times is None:
            self.expect(None)
        assert self._times is not None
        self._level.observe(self._loaded.at(length), seconds)
        self._times.add(length, seconds)

    def _slow_down(self, start_s: float) -> None:
        """Sleep until a slower device would have done what began at `start_s` of the session's clock."""
        if self.dilation.compute > 1.0:
            self._emulated.rest_since(start_s, self.dilation.compute)

    @abstractmethod
    def _run(self, feeds: GivenFeeds, out: Feeds | None) -> dict[str, np.ndarray]:
        """Outputs for feeds that nobody has checked yet."""

    @abstractmethod
    def _reply(self, request: Request) -> Reply[D]:
        """The reply to a request that `request` made."""
