"""The base class of sessions: run inputs, predict times, and serve requests as an endpoint."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, overload

import numpy as np

from pliant.errors import BudgetError, InputError
from pliant.ir.curve import Curve, limit
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import ACCURACY_TOLERANCE, Estimate, Request, ServiceLevel
from pliant.ir.port import Port
from pliant.ir.reply import Reply
from pliant.ir.times.bounded_level import BoundedLevel
from pliant.ir.times.fit import FitSettings, LocalTimes
from pliant.ir.times.limited_levels import LimitedLevels, check_length
from pliant.ir.times.timing import Timing
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.memory_use import MemoryNeed, MemoryUse
from pliant.run.process_memory import BudgetOwner
from pliant.run.session.feeds import FeedsLike
from pliant.run.session.ports import Feeds, parse_run_arguments
from pliant.run.session.text_feeds import TextReader

if TYPE_CHECKING:
    from pliant.run.session.step_profile import StepProfile

D = TypeVar("D", covariant=True)
_UNKNOWN = Curve(((0, 0.0),))
"""The curve before any measurement: 0 seconds, so that requests are accepted and measured."""


class _ThreadSeconds(threading.local):
    """The time of this thread's answer that was spent loading or compiling."""

    loaded_s = 0.0


class Session(ABC, Generic[D]):
    """An open model: a context manager and an `Endpoint`; threads may share it.

    Runs of several threads are serialised. A session cannot be pickled; after `fork` the child may use it, on
    threads of its own, unless its class says otherwise. `close` waits for the answer in progress; later calls
    raise InputError. `identity` is the content hash of the model. A request has exactly the inputs of one of
    `ways`. One input has at most `max_length` items. Time grows with the length as a polynomial of `degree`:
    2 for attention, 1 for recurrence.

    The methods of this class serve a session with one way to answer: its time curve is fitted to its answers,
    and it states no accuracy. `expect` sets a prior curve.
    """

    platform: ClassVar[str]
    """The platform name of this kind of session in the Open Inference Protocol."""
    degree: ClassVar[Literal[1, 2]] = 2
    name: str
    identity: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    labels: tuple[str, ...] | None = None
    max_length: int
    text_reader: TextReader | None = None
    """With it, `request` takes the tensor `text` as well; None for a model that reads arrays alone, or texts
    by itself."""

    def __init__(
        self,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds),  # looked up at call time
    ) -> None:
        """`dilation` emulates a slower device: each run takes that many times as long."""
        self.dilation, self._clock = dilation, clock
        self._emulated = EmulatedDevice(dilation, clock=clock, sleep=sleep)
        self._times: LocalTimes | None = None
        self._level, self._limited = BoundedLevel(), LimitedLevels()
        self._timing = ForkSafeLock()
        self._thread = _ThreadSeconds()
        self.budgeted: BudgetOwner | None = None
        """What has its share of a shared memory budget; None without one."""
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

    # For users

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
    def run(self, feeds: FeedsLike, out: Feeds | None = None) -> dict[str, Any]: ...

    @overload
    def run(self, feeds: Sequence[str] | None, out: FeedsLike) -> list[Any]: ...

    def run(
        self, feeds: FeedsLike | Sequence[str] | None, out: FeedsLike | None = None
    ) -> dict[str, Any] | list[Any]:
        """Outputs by name, for feeds by name; those of `out` are written into the arrays given there.

        A feed is a numpy array, another library's tensor, or a list of numbers; run/session/feeds.py lists
        the allowed casts. A sequence is a list of arrays, an absent optional value is None. The form of
        onnxruntime, `run(names or None, feeds)`, returns a list. Raises InputError naming a feed that is
        missing, unknown, or of the wrong type or shape, and a size above the model's limit; GraphError when
        the model cannot be compiled for these shapes.
        """
        given, into, names = parse_run_arguments(feeds, out, self.outputs)
        results = self._run(given, into)
        return results if names is None else [results[y] for y in names]

    @property
    @abstractmethod
    def plan(self) -> Any:
        """The plan, with its reasons; it prints as a page, and as a picture in a notebook."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of weights that this process holds for the session."""

    @property
    @abstractmethod
    def memory(self) -> MemoryUse:
        """The memory that the session adds to its process, predicted and measured; it prints as a table."""

    @abstractmethod
    def explain(self, length: int) -> Any:
        """The plan for inputs of `length` items, prepared now; it prints as `plan` does."""

    @abstractmethod
    def profile(self, feeds: FeedsLike, runs: int = 20) -> "StepProfile":
        """The time of each step, over `runs` runs after one warm-up run.

        The feeds are one of `ways`, as `run` takes them. Raises InputError as `run` does, and for less than 1
        run.
        """

    @abstractmethod
    def close(self) -> None:
        """Free threads and memory, after the answer in progress; safe to call twice."""

    def retarget(self, *args: Any, **options: Any) -> None:
        """Change the latency or the memory that the session was opened with, and plan anew.

        Raises InputError for a session with one way to answer, and BudgetError, changing nothing, if no plan
        meets them.
        """
        raise InputError(
            f"{self.name} has one way to answer, so there is nothing to retarget: open a text encoder "
            "(docs/sources.md) to choose latency and memory."
        )

    def get_inputs(self) -> list[Port]:
        """The inputs, as in onnxruntime: each has `name`, `type` and `shape`."""
        return list(self.inputs)

    def get_outputs(self) -> list[Port]:
        """The outputs, as in onnxruntime."""
        return list(self.outputs)

    # For nodes

    @property
    def ways(self) -> tuple[frozenset[str], ...]:
        """The possible sets of inputs; a request has exactly one of them."""
        return (frozenset(port.name for port in self.inputs),)

    @abstractmethod
    def request(self, feeds: Mapping[str, np.ndarray]) -> Request:
        """The request made of these arrays, with its length. Fast; raises InputError."""

    @abstractmethod
    def sample(self, length: int) -> dict[str, np.ndarray]:
        """Feeds of an input of about `length` items, for timing."""

    @property
    def max_items(self) -> int:
        """The largest product of an input's open dimensions; for most sessions the largest length."""
        return self.max_length

    @property
    def best(self) -> float | None:
        """The best accuracy available at every length; None if accuracy was not measured."""
        return None

    @property
    def loading_s(self) -> float:
        """Seconds that the next answer spends on loading the model: 0 if it is in memory."""
        return 0.0

    def expect(self, prior: Curve | None, spread: float = 1.0) -> None:
        """Reset the time curve to `prior` and the bound to `spread` times that: earlier answers were measured
        under other conditions.
        """
        self._times = LocalTimes(FitSettings(degree=self.degree), self.max_length, prior)
        self._level = BoundedLevel(spread)

    def most_length(self, like: Request | None = None) -> int | None:
        """The longest input that there is memory for; None for all that the model takes, or if unknown. Fast.

        With `like`, inputs whose shape differs from that one in the last open dimension only.
        """
        return None

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        """The memory for an answer of that accuracy, by default the best. Fast."""
        return MemoryNeed(self.weight_bytes)

    def compiling(self, request: Request) -> Timing | None:
        """The expected time to compile for the shape of this request; None if that is done. Fast."""
        return None

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by length of answers of at least that accuracy, by recent measurements. Raises
        BudgetError.
        """
        self._check_floor(accuracy_floor)
        most_n = self.most_length()
        return self._expected_curve if most_n is None else limit(self._expected_curve, most_n)

    def look_again(self) -> None:
        """Update `levels` after devices joined or left; may take as long as planning."""

    def reconsider(self) -> bool:
        """Trust the profiled device speeds again, ignoring the latest answers, until a new answer contradicts
        them.

        Call it before a probe. Returns whether a probe may find this endpoint faster than currently
        estimated.
        """
        return True

    def levels(self) -> tuple[ServiceLevel, ...]:
        """The accuracies available now, worst first; the same tuple until they change."""
        return self._limited.at(self._level.at(self._expected_curve, self.best), self.most_length())

    def estimate(self, request: Request) -> Estimate:
        """The estimated time of `answer` now; fast, and safe to call during `answer` on another thread.
        Raises BudgetError for too long an input or too high an accuracy floor.
        """
        curve, n = self.curve(request.accuracy_floor or 0.0), request.length
        check_length(self.name, n, self.most_length(request))
        seconds, bound_s = curve.at(n), self.levels()[-1].bound_curve.at(n)
        return Estimate(seconds, self.best, max(seconds, bound_s)).after(self.compiling(request))

    def answer(self, request: Request) -> Reply[D]:
        """The reply to a request, whatever its deadline. Raises BudgetError for an accuracy floor that cannot
        be met, and the errors of `run`.
        """
        self._check_floor(request.accuracy_floor or 0.0)
        self._thread.loaded_s, start_s = 0.0, self._clock()
        reply = self._reply(request)
        seconds = self._clock() - start_s
        loaded_s = min(self._thread.loaded_s, seconds)
        whole_s = seconds - loaded_s
        with self._timing.lock:
            self._record_seconds(request.length, whole_s)
        return replace(reply, seconds=seconds, loaded_s=loaded_s, whole_s=whole_s)

    @property
    def most_together(self) -> int:
        """The most requests that run together in one batch of `answers`."""
        return 1

    @property
    def most_together_beside(self) -> int:
        """The same of `answers_beside`."""
        return self.most_together

    @property
    def most_items_together(self) -> float:
        """The most items that these requests have in total."""
        return inf

    def together(self, request: Request) -> Hashable | None:
        """The batch key: requests with equal keys run together in `answers`; None for a request that gains
        nothing from a batch.
        """
        return None

    def answers(self, requests: Sequence[Request]) -> list[Reply[D]]:
        """The replies to requests of one key, run together; equal to those of `answer` up to rounding.

        `seconds` of each reply is the time of the whole batch. Raises the error of any of them.
        """
        return [self.answer(request) for request in requests]

    @property
    def most_beside(self) -> int:
        """How many calls of `answers_beside` run at the same time; 1 if they are serialised."""
        return 1

    def divide_threads(self, n_workers: int | None, most_bytes: int | None = None) -> None:
        """Let `n_workers` calls of `answers_beside` run at the same time, if they are not serialised.

        Each has its share of the threads; None is the default. With `most_bytes` there are only as many, now
        and later, as have memory within it beside all else of the session, but at least one.
        """

    @property
    def pace_beside(self) -> float:
        """The time of one request in such a call, as a multiple of the time of `answer`."""
        return 1.0

    def answers_beside(self, requests: Sequence[Request]) -> list[Reply[D]]:
        """As `answers`, on the threads available to one of `most_beside` concurrent calls."""
        return self.answers(requests)

    def prepare_together(self, length: int) -> bool:
        """Prepare batches of requests of about this length, which may take seconds.

        Returns whether such batches exist; `together` then returns a key for these requests.
        """
        return False

    def traced(self, request: Request) -> Reply[Any]:
        """As `answer`, with details that include the time of each step of this run: `program` and `spans`.

        If `answer` has no details, they are a `Profile` of the run (run/session/call_profile.py). It reads
        the clock between kernel calls, so the time of such an answer is not representative.
        """
        return self.answer(request)

    @property
    def _loaded_curve(self) -> Curve:
        """The time curve of answers with the model in memory, by recent measurements."""
        return (None if self._times is None else self._times.curve) or _UNKNOWN

    @property
    def _expected_curve(self) -> Curve:
        """The time curve of the next answer, including the time to load the model if it is not in memory."""
        curve, loading_s = self._loaded_curve, self.loading_s
        if not loading_s:
            return curve
        if self._after_loading is None or self._after_loading[:2] != (curve, loading_s):
            self._after_loading = curve, loading_s, curve.plus(loading_s)
        return self._after_loading[2]

    def _check_floor(self, accuracy_floor: float) -> None:
        if accuracy_floor > 0.0 and self.best is None:
            raise BudgetError(
                f"the accuracy of {self.name} was never measured, so no floor of {accuracy_floor:g} is "
                "promised: leave it out."
            )
        if self.best is not None and accuracy_floor > self.best + ACCURACY_TOLERANCE:
            raise BudgetError(
                f"{self.name} has an accuracy of {self.best:.4f} at most, not {accuracy_floor:g}: lower the "
                "floor."
            )

    def _record_seconds(self, length: int, seconds: float) -> None:
        """Record the time of an answer, without loading; call with the lock held."""
        if self._times is None:
            self.expect(None)
        assert self._times is not None
        self._level.observe(self._loaded_curve.at(length), seconds)
        self._times.add(length, seconds)

    def _slow_down(self, start_s: float) -> None:
        """Sleep until the emulated device would have finished the work that began at clock time `start_s`."""
        if self.dilation.compute > 1.0:
            self._emulated.rest_since(start_s, self.dilation.compute)

    @abstractmethod
    def _run(self, feeds: FeedsLike, out: Feeds | None) -> dict[str, np.ndarray]:
        """Outputs for unchecked feeds."""

    @abstractmethod
    def _reply(self, request: Request) -> Reply[D]:
        """The reply to a request made by `request`."""
