"""Base class of the sessions on graphs: arrays by name in and out, for every kind of model."""

import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.errors import InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.graph import numpy_type
from pliant.ir.port import Port, require_tensors
from pliant.ir.reply import Reply
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import PrecisionChoice
from pliant.quantities import check_whole
from pliant.run.array_sessions.array_memory import SessionArrays, array_memory
from pliant.run.array_sessions.array_plan import ArrayPlan, image_plan
from pliant.run.array_sessions.input_sizes import input_length, shapes_of_length
from pliant.run.batches.buckets import Buckets
from pliant.run.batches.feed_batcher import BatchItem, FeedBatcher, RunFunctions
from pliant.run.batches.padding import Padding
from pliant.run.batches.parallel_runs import ParallelRuns
from pliant.run.batches.request_batcher import RequestBatcher
from pliant.run.graph.array_stage import AllTensors, Tensors
from pliant.run.graph.graph_runner import GraphRunner
from pliant.run.memory_use import MemoryNeed, MemoryUse
from pliant.run.session.feeds import FeedsLike, convert_feeds, name_feed
from pliant.run.session.ports import Feeds, Shapes, describe_session, shapes_of
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import text_of

if TYPE_CHECKING:
    from pliant.run.session.call_profile import Profile

_MOST_ITEMS = 4096


class ArraySession(Session[None]):
    """A session that answers arrays by name; runs of several threads are serialised.

    Requests run beside each other in `answers_beside`, each worker with an arena of its own.

    The length of an input is the product of the open dimensions of the first of the model's inputs that has
    any, or 1 if none has. The pool may be shared with other sessions; the session does not close it.
    """

    platform = "pliant_compiled"
    max_length = _MOST_ITEMS

    def __init__(
        self,
        name: str,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        pool: ThreadPool,
        library: Library,
        dilation: Dilation,
        *,
        buckets: Buckets = Buckets(),  # noqa: B008 - frozen
        memory_bytes: int | None = None,
    ) -> None:
        """With `memory_bytes` there is one worker, since each has an arena of its own."""
        super().__init__(dilation)
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self._tensors = tuple(port for port in self.inputs if port.element is None)
        self._pool, self._turns, self._closed = pool, ForkSafeLock(), False
        self._memory_bytes, n_threads = memory_bytes, pool.n_threads
        self._padding = Padding(buckets, self._tensors, self.outputs)
        self._feed_batcher = FeedBatcher(buckets, self._padding, self.inputs, self.outputs, n_threads)
        self._request_batcher = RequestBatcher(
            self._tensors, self.outputs, n_threads, memory_bytes is not None
        )
        self._parallel = ParallelRuns(n_threads, library, memory_bytes is not None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._pool.n_threads} threads"
        return describe_session(f"{type(self).__name__} of {self.name}", self.inputs, self.outputs, state)

    def __call__(self, value: Any, /) -> Reply[None]:  # type: ignore[override]  # a list holds numbers here
        """The reply of a model with one input; `value` is what `run` takes as a feed.

        `reply.output` is the array of a model with one output, `reply.outputs` has all by name. Raises
        InputError as `run` does, and for a model with several inputs.
        """
        start_s = time.perf_counter()
        arrays = convert_feeds(self.inputs, name_feed(self.inputs, value))
        outputs = self._run(arrays, None)
        seconds = time.perf_counter() - start_s
        return Reply(outputs, self.name, seconds, None, input_length(self.inputs, arrays))

    def run_many(self, feeds: Sequence[FeedsLike]) -> list[Tensors]:
        """The result of `run` for each of several feeds, in their order; an empty list for an empty list.

        A model whose inputs have an open first dimension answers several feeds in one run: feeds of equal
        sizes, or, with `buckets`, feeds that are padded to equal sizes. Runs of similar size run in parallel,
        one per thread, each in memory of its own. The outputs equal those of `run` up to rounding; this is
        checked by comparison. If the check fails, or under a memory limit, feeds run one after another.
        Raises InputError naming the feeds that do not fit, before any feed runs.
        """
        items = [self._item(i, given) for i, given in enumerate(feeds)]
        with self._turns.lock:
            self._check_open()
            start_s = self._clock()
            answers = self._answer_many(items)
            self._slow_down(start_s)
            return answers

    @property
    def memory(self) -> MemoryUse:
        """The memory predicted when images were made, with that of each worker, and measured now."""
        with self._turns.lock:
            worker_bytes = self._parallel.worker_bytes(self._runners()) if self.most_beside > 1 else 0
            return array_memory(self._arrays, self._pool, self._memory_bytes, worker_bytes)

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        return MemoryNeed(self._arrays.n_bytes, self._memory_bytes)

    @property
    def compute(self) -> ComputeDtype | None:
        """The arithmetic of products with constant matrices; None for a compiled directory, which does not
        record it.
        """
        return None

    @property
    def precision(self) -> PrecisionChoice | None:
        """How `compute` was chosen; None unless the session was opened with `compute="auto"`."""
        return None

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena for intermediate tensors: the need of the largest image."""
        return max((runner.arena_bytes for runner in self._runners()), default=0)

    @property
    def plan(self) -> ArrayPlan:
        """The plan for the shapes compiled so far; it prints as a page."""
        with self._turns.lock:
            return self._plan(self._runners())

    def explain(self, length: int) -> ArrayPlan:
        """The plan for `sample(length)`, which is compiled now if it was not compiled before.

        Raises InputError and GraphError as `run` does.
        """
        check_whole(length, "length")
        feeds = convert_feeds(self.inputs, self.sample(length))
        shapes_of(self.inputs, feeds)
        with self._turns.lock:
            self._check_open()
            runner, _ = self._runner(feeds)
            return self._plan((runner,))

    def profile(self, feeds: FeedsLike, runs: int = 20) -> "Profile":
        """The time of each step, over `runs` runs after one warm-up run."""
        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        arrays = convert_feeds(self.inputs, feeds)
        shapes_of(self.inputs, arrays)
        with self._turns.lock:
            self._check_open()
            runner, fed = self._runner(arrays)
            return runner.profile(fed, runs)

    def traced(self, request: Request) -> "Reply[Profile]":
        start_s = self._clock()
        arrays = convert_feeds(self.inputs, request.tensors)
        shapes_of(self.inputs, arrays)
        ready_s = self._clock()
        with self._turns.lock:
            waited_s = self._clock() - ready_s
            self._check_open()
            outputs, profile = self._traced(arrays)
            self._slow_down(start_s + waited_s)
        seconds = self._clock() - start_s
        return Reply(outputs, self.name, seconds, profile, request.length, waited_s, whole_s=seconds)

    def request(self, feeds: Mapping[str, np.ndarray]) -> Request:
        """The request of one array for each input, or of `text`, if `text_reader` is set.

        Raises InputError for arrays that do not fit, and for a text that the model does not read.
        A model with inputs or outputs that are not tensors has no requests: use `run` or calls.
        """
        require_tensors((*self.inputs, *self.outputs), "a request")
        if self.text_reader is not None and feeds.keys() == {"text"}:
            feeds = self.text_reader.feeds(text_of(feeds, self.text_reader.max_tokens))
        arrays = convert_feeds(self.inputs, feeds)
        shapes_of(self.inputs, arrays)
        return Request(input_length(self.inputs, arrays), tensors=arrays)

    def together(self, request: Request) -> Hashable | None:
        batcher = self._batcher
        return None if batcher is None else batcher.key(_shapes(request), self.most_beside > 1)

    def answers(self, requests: Sequence[Request]) -> list[Reply[None]]:
        batcher = self._batcher
        if len(requests) < 2 or batcher is None or not batcher.are_alike(map(_shapes, requests)):
            return super().answers(requests)
        items, start_s = self._requested_items(requests), self._clock()
        with self._turns.lock:
            waited_s = self._clock() - start_s
            self._check_open()
            answers = batcher.answer(items, self._run_functions)
            self._slow_down(start_s + waited_s)
        return self._replies(requests, answers, start_s, waited_s)

    def answers_beside(self, requests: Sequence[Request]) -> list[Reply[None]]:
        batcher = self._batcher
        if batcher is None or self.most_beside < 2 or not batcher.are_alike(map(_shapes, requests)):
            return super().answers_beside(requests)
        most = batcher.max_requests_beside
        if len(requests) > most:
            parts = [requests[i : i + most] for i in range(0, len(requests), most)]
            return [reply for part in parts for reply in self.answers_beside(part)]
        items, start_s = self._requested_items(requests), self._clock()
        with self._turns.lock:
            waited_s = self._clock() - start_s
            self._check_open()
            run = batcher.begin(items, self._run_functions)
        answers = run()
        self._slow_down(start_s + waited_s)
        return self._replies(requests, answers, start_s, waited_s)

    @property
    def most_beside(self) -> int:
        return 1 if self._batcher is None else self._parallel.n_workers

    def divide_threads(self, n_workers: int | None, most_bytes: int | None = None) -> None:
        with self._turns.lock:
            self._parallel.close()  # its memory does not count as that of all else
            if most_bytes is not None:
                memory = array_memory(self._arrays, self._pool, self._memory_bytes, 0)
                most_bytes -= memory.predicted_bytes
            self._parallel.divide(n_workers, most_bytes, self._runners())

    @property
    def pace_beside(self) -> float:
        batcher = self._batcher
        return 1.0 if batcher is None else batcher.pace_beside or self._parallel.pace

    @property
    def most_together(self) -> int:
        batcher = self._batcher
        return 1 if batcher is None else batcher.max_requests

    @property
    def most_together_beside(self) -> int:
        batcher = self._batcher
        return 1 if batcher is None else batcher.max_requests_beside

    @property
    def most_items_together(self) -> float:
        batcher = self._batcher
        return inf if batcher is None else batcher.max_items

    def prepare_together(self, length: int) -> bool:
        batcher, longest = self._batcher, self._item(0, self.sample(length))
        size = None if batcher is None else batcher.size(longest.shapes)
        if batcher is None or size is None:
            return False

        def samples(n: int) -> list[BatchItem]:  # of several lengths, so that padding is compared
            return [self._item(i, self.sample(max(length - i % 4, 1))) for i in range(n)]

        with self._turns.lock:
            self._check_open()
            return batcher.prepare(size, samples, self._run_functions, self._clock, self.most_beside > 1)

    def sample(self, length: int) -> dict[str, np.ndarray]:
        """Ones; the last open dimension of each input is `length`, and equal names have equal sizes.

        Raises InputError for a model whose inputs are no tensors.
        """
        require_tensors(self.inputs, "a sample")
        shapes = shapes_of_length(self.inputs, length)
        return {port.name: np.ones(shapes[port.name], numpy_type(port.dtype)) for port in self.inputs}

    @abstractmethod
    def _answer(self, feeds: AllTensors, out: Feeds | None, shapes: Shapes) -> Tensors:
        """Outputs for checked feeds; called with the lock held."""

    @property
    def _batcher(self) -> RequestBatcher | None:
        """What decides which requests run together or beside each other; None if all run one by one."""
        return self._request_batcher

    @property
    def _run_functions(self) -> RunFunctions:
        """The functions with which `_batcher` runs requests."""
        return RunFunctions(
            self._run_single, self._run_batch, self._run_parallel, self._begin_run, self._run_uncached
        )

    def _run_single(self, feeds: AllTensors) -> Tensors:
        return self._answer(feeds, None, array_shapes(feeds))

    def _run_batch(self, feeds: AllTensors) -> Tensors:
        return self._image_of(feeds, is_batch=True).walk(feeds, None)

    def _run_parallel(self, batches: Sequence[Feeds]) -> list[Tensors]:
        return self._parallel.run([(self._image_of(feeds), feeds) for feeds in batches])

    def _begin_run(self, feeds: Feeds) -> Callable[[], Tensors]:
        return self._parallel.begin(self._image_of(feeds), feeds)

    def _run_uncached(self, feeds: AllTensors) -> Tensors:
        """The answer to unpadded feeds, for a comparison."""
        return self._run_single(feeds)

    def _answer_many(self, items: Sequence[BatchItem]) -> list[Tensors]:
        """As `_answer`, for several feeds; one by one under a memory limit, since each run that is parallel
        has an arena of its own.
        """
        if self._memory_bytes is not None:
            return [self._answer(item.feeds, None, item.shapes) for item in items]
        return self._feed_batcher.answer(items, self._run_functions)

    @abstractmethod
    def _image_of(self, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        """The runner for feeds of exactly these shapes. Raises BudgetError for a batch that does not fit."""

    @abstractmethod
    def _runner(self, feeds: AllTensors) -> tuple[GraphRunner, AllTensors]:
        """The runner for checked feeds, and the feeds in its form."""

    def _traced(self, feeds: AllTensors) -> "tuple[Tensors, Profile]":
        """As `_answer`, with the profile of the run."""
        runner, fed = self._runner(feeds)
        return runner.traced(fed)

    @abstractmethod
    def _runners(self) -> Sequence[GraphRunner]:
        """The current runners, the latest last."""

    @property
    @abstractmethod
    def _arrays(self) -> SessionArrays:
        """The arrays in memory now; also during a run on another thread."""

    def _run(self, feeds: FeedsLike, out: Feeds | None) -> Tensors:
        start_s = self._clock()
        arrays = convert_feeds(self.inputs, feeds)
        shapes = shapes_of(self.inputs, arrays)
        ready_s = self._clock()
        with self._turns.lock:
            waited_s = self._clock() - ready_s
            self._check_open()
            results = self._answer(arrays, out, shapes)
            self._slow_down(start_s + waited_s)  # an emulated slower device also checks feeds more slowly
            return results

    def _item(self, i: int, feeds: FeedsLike) -> BatchItem:
        try:
            arrays = convert_feeds(self.inputs, feeds)
            return BatchItem(arrays, shapes_of(self.inputs, arrays))
        except InputError as error:
            raise InputError(f"feeds {i} of the list: {error}") from error

    def _requested_items(self, requests: Sequence[Request]) -> list[BatchItem]:
        """The items of a batch. Raises BudgetError for an accuracy floor that cannot be met."""
        for request in requests:
            self._check_floor(request.accuracy_floor or 0.0)
        return [BatchItem(request.tensors, _shapes(request)) for request in requests]

    def _replies(
        self, requests: Sequence[Request], answers: Sequence[Tensors], start_s: float, waited_s: float
    ) -> list[Reply[None]]:
        seconds = self._clock() - start_s
        pairs = zip(requests, answers, strict=True)
        return [Reply(y, self.name, seconds, None, request.length, waited_s) for request, y in pairs]

    def _reply(self, request: Request) -> Reply[None]:
        return Reply(self._run(request.tensors, None), self.name, 0.0, None, request.length)

    def _plan(self, runners: Sequence[GraphRunner]) -> ArrayPlan:
        images, ports = tuple(map(image_plan, runners)), (self.inputs, self.outputs)
        sizes, precision = (self.weight_bytes, self.arena_bytes), (self.compute, self.precision)
        return ArrayPlan(self.name, *ports, self._pool.n_threads, *sizes, images, *precision)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this session is closed; compile or load the model again.")


def array_shapes(feeds: Mapping[str, Any]) -> Shapes:
    """The shapes of the feeds that are arrays."""
    return {x: array.shape for x, array in feeds.items() if isinstance(array, np.ndarray)}


def _shapes(request: Request) -> Shapes:
    return array_shapes(request.tensors)
