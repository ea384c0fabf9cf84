"""A session on a recurrent model: words in, label or vector out, one native call.

All lengths use the same kernels. A form is lowered for each power of two when it is first needed; a run
executes only as many of its steps as the input has. Several texts run as one batch without padding: in each
step the states of the texts that are not at their end are multiplied together.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np

from pliant.arrays import Float32
from pliant.compiler.executable.stage import BoundStage
from pliant.errors import BudgetError, InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.program import Compute, LinearExtent, Program, Segment, Step, bind
from pliant.ir.reply import Reply
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.models.recurrent.recurrent_spec import MAX_TOKENS, RecurrentSpec
from pliant.models.tokenizer import TokenizedInput
from pliant.quantities import check_whole
from pliant.run.array_sessions.operator_calls import operator_calls
from pliant.run.array_sessions.recurrent_plan import RecurrentPlan
from pliant.run.array_sessions.recurrent_runner import LEAST_STEPS, RecurrentRunner
from pliant.run.batches.text_batches import group_texts
from pliant.run.execute_inline import execute_inline, inline_spans
from pliant.run.memory_use import MemoryNeed, MemoryUse, scratch_part
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.feeds import FeedsLike
from pliant.run.session.ports import describe_session
from pliant.run.session.text_session import TextInput, TextSession
from pliant.system import rss_bytes, trim_heap

if TYPE_CHECKING:
    from pliant.run.session.call_profile import Profile, TimedRun

T = TypeVar("T")
_MOST_TOGETHER = 64
_PREPARED = (2, 4, 8, 16)
"""Numbers of texts for which batches are prepared."""
_WORDS = "words"
_PROGRAM = Program(
    (Segment((Step("cpu", Compute("recurrent", rows=LinearExtent(_WORDS))),)),), extents=(_WORDS,)
)


@final
class RecurrentSession(TextSession[None]):
    """A recurrent model on this device. Threads may share it; their runs are serialised. The pool is left
    open.

    Its time is proportional to the number of words. The texts of a list run in batches without padding;
    `reply.seconds` is the time until the end of its batch.
    """

    platform = "pliant_recurrent"
    degree = 1

    def __init__(
        self,
        source: RecurrentSource,
        library: Library,
        pool: ThreadPool,
        *,
        name: str | None = None,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        memory: int | MemoryBudget | None = None,
    ) -> None:
        """`memory` limits the session's memory, or is a budget shared with other models. With a shared budget
        the model is in memory while there is room, is loaded again for a request, and its runs are serialised
        with those of the other models. Raises BudgetError if the weights and the activations of the shortest
        form exceed the memory.
        """
        spec = source.spec
        super().__init__(
            name or source.name,
            source.identity,
            labels=spec.labels,
            features=spec.features,
            max_length=spec.max_tokens,
            vocab=spec.vocab,
            dilation=dilation,
        )
        self._pool, self._closed = pool, False
        self._shared = memory if isinstance(memory, MemoryBudget) else None
        self._turns = ForkSafeLock() if self._shared is None else self._shared.turns
        with self._turns.lock:
            self.runner = RecurrentRunner(source, library, pool, self.name, memory, self._clock)
            self.budgeted = self.runner
        trim_heap()  # reading and packing fragments the heap

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._pool.n_threads} threads"
        return describe_session(f"RecurrentSession of {self.name}", self.inputs, self.outputs, state)

    @property
    def source(self) -> RecurrentSource:
        return self.runner.source

    @property
    def spec(self) -> RecurrentSpec:
        return self.source.spec

    @property
    def loading_s(self) -> float:
        return self.runner.loading_s

    def most_length(self, like: Request | None = None) -> int | None:
        """The most words that there is memory for; the largest share of a shared budget counts."""
        return self.runner.most_steps

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        runner = self.runner
        held_bytes, most_bytes = runner.held_bytes, runner.most_bytes
        return MemoryNeed(held_bytes, most_bytes, runner.needed_bytes - held_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory: packed for kernels, those of the source, and word vectors."""
        return self.runner.weight_bytes

    @property
    def memory(self) -> MemoryUse:
        """The memory predicted when the forms were made, and the memory in use now."""
        with self._turns.lock:
            runner = self.runner
            return MemoryUse(runner.most_bytes, runner.memory, (scratch_part(self._pool),), rss_bytes())

    def look_again(self) -> None:
        """Divide the shared budget among the models anew, by their recent request rates."""
        if self._shared is not None:
            self._shared.rebalance()

    @property
    def plan(self) -> RecurrentPlan:
        """The plan for the maximum length of the largest form; it prints as a page."""
        with self._turns.lock:
            self._make_ready()
            return self._planned(max(self.runner.steps, default=LEAST_STEPS))

    def explain(self, length: int) -> RecurrentPlan:
        """The plan for `length` words. Forms for all shorter lengths are made now, so that no later request
        pays for making one. Raises InputError for a length that the model does not accept.
        """
        check_whole(length, "length")
        if not 1 <= length <= self.max_length:
            raise InputError(f"a text of {length} words is not read; give 1 to {self.max_length}.")
        with self._turns.lock:
            self._make_ready()
            for steps in accumulate(repeat(2), mul, initial=LEAST_STEPS):
                self.runner.reserve(steps)
                if steps >= length:
                    break
            return self._planned(length)

    def profile(self, feeds: FeedsLike | str, runs: int = 20) -> "Profile":
        """The time of each step of an answer to text or feeds, over `runs` runs after one warm-up run."""
        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        given = {"text": feeds} if isinstance(feeds, str) else feeds
        ids = self._encoded(given).ids
        with self._turns.lock:
            self._make_ready()
            self._run_steps(self.runner.stage_of_ids(ids), len(ids))
            timed = [self._timed(ids) for _ in range(runs)]
        return self._profiled(len(ids), timed)

    def traced(self, request: Request) -> "Reply[Profile]":
        item = self._input_of_request(request)
        ids = item.encoded.ids
        asked_s = self._clock()
        with self._turns.lock:
            start_s = self._clock()
            self._make_ready()
            timed = self._timed(ids)
            fields = self.outputs_of(self.runner.numbers[0].copy())
            self._slow_down(start_s)
        seconds = time.perf_counter() - item.start_s
        profile = self._profiled(len(ids), [timed])
        return Reply(
            endpoint=self.name,
            seconds=seconds,
            details=profile,
            length=len(ids),
            waited_s=start_s - asked_s,
            whole_s=seconds,
            **fields,
        )

    def encode(self, text: str, pair: str | None = None) -> TokenizedInput:
        """The word ids of a text. Raises InputError for no word, too many words, or a pair."""
        if pair is not None:
            raise InputError(f"{self.name} is a recurrent model, which reads one text and no pair.")
        return self.source.encode(text)

    def truncate(self, text: str, pair: str | None = None) -> tuple[str, str | None]:
        """The beginning of a text, cut to the length that the model accepts."""
        return self.source.truncate(text), pair

    def states(self, vectors: Float32[np.ndarray, "tokens inputs"]) -> Float32[np.ndarray, "tokens width"]:
        """The last layer's state after each step, both directions concatenated: the output of an encoder.

        Raises InputError for vectors that the model cannot read.
        """
        n, inputs = len(vectors), self.spec.inputs
        if not 1 <= n <= MAX_TOKENS or vectors.shape[1:] != (inputs,):
            raise InputError(
                f"vectors of {list(vectors.shape)} cannot be read; give 1 to {MAX_TOKENS} rows of {inputs}."
            )
        with self._turns.lock:
            start_s = self._clock()
            self._make_ready()
            self._run_steps(self.runner.stage_of_vectors(vectors), n)
            states = self.runner.states[:n].copy()
            self._slow_down(start_s)
            return states

    @property
    def most_together(self) -> int:
        return _MOST_TOGETHER

    @property
    def most_items_together(self) -> int:
        return self.runner.most_rows

    def together(self, request: Request) -> Hashable | None:
        return "texts" if self.runner.most_rows else None

    def answers(self, requests: Sequence[Request]) -> list[Reply[None]]:
        if len(requests) < 2 or not self.runner.most_rows:
            return super().answers(requests)
        for request in requests:
            self.curve(request.accuracy_floor or 0.0)
        return self._answers([self._input_of_request(request) for request in requests], None)

    def prepare_together(self, length: int) -> bool:
        """Make the forms for batches of texts of this length. Raises BudgetError if memory is too little."""
        with self._turns.lock:
            self._make_ready()
            for n in _PREPARED:
                if n * max(length, LEAST_STEPS) > self.runner.most_rows:
                    break
                self.runner.reserve_texts([length] * n)
            return self.runner.most_rows > 0

    def close(self) -> None:
        """Free all memory; a later answer raises an error."""
        with self._turns.lock:
            self._closed = True
            self.runner.close()

    def _answers(self, inputs: Sequence[TextInput], target_s: float | None) -> list[Reply[None]]:
        if len(inputs) < 2:
            return [self._answer(one, target_s) for one in inputs]
        # The longest first, so that texts of about equal length run together.
        order = sorted(range(len(inputs)), key=lambda i: -inputs[i].encoded.n_tokens)
        rows = [max(inputs[i].encoded.n_tokens, LEAST_STEPS) for i in order]
        replies: dict[int, Reply[None]] = {}
        for batch in group_texts(rows, [None] * len(rows), self.runner.most_rows):
            numbers = [order[k] for k in batch]
            some = self._answer_batch([inputs[i] for i in numbers], target_s)
            replies |= zip(numbers, some, strict=True)
        return [replies[i] for i in range(len(inputs))]

    def _answer_batch(self, inputs: Sequence[TextInput], target_s: float | None) -> list[Reply[None]]:
        """The replies to some inputs, the longest first, in one run; in several if memory is too little."""
        asked_s = self._clock()
        with self._turns.lock:
            start_s = self._clock()
            self._make_ready()
            found = [self.outputs_of(row) for row in self._run_texts([one.encoded.ids for one in inputs])]
            self._slow_down(start_s)
        end_s = time.perf_counter()
        return [
            Reply(
                endpoint=self.name,
                seconds=end_s - one.start_s,
                details=None,
                length=one.encoded.n_tokens,
                waited_s=start_s - asked_s,
                target_s=target_s,
                **fields,
            )
            for one, fields in zip(inputs, found, strict=True)
        ]

    def _run_texts(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """The answers to the words of some texts, the longest first, [texts, numbers]."""
        try:
            stage = self.runner.stage_of_texts(texts)
        except BudgetError:
            if len(texts) == 1:
                raise
            half = len(texts) // 2
            return np.concatenate([self._run_texts(texts[:half]), self._run_texts(texts[half:])])
        self._run_steps(stage, sum(map(len, texts)))
        return self.runner.numbers[: len(texts)].copy()

    def _answer(self, item: TextInput, target_s: float | None) -> Reply[None]:
        ids = item.encoded.ids
        fields, waited_s = self._read_in_turn(ids, self.outputs_of)
        return Reply(
            endpoint=self.name,
            seconds=time.perf_counter() - item.start_s,
            details=None,
            length=len(ids),
            waited_s=waited_s,
            target_s=target_s,
            **fields,
        )

    def _input_of_request(self, request: Request) -> TextInput:
        item = super()._input_of_request(request)
        if request.text is None:  # ids of an unknown origin are checked
            self.source.check(item.encoded.ids)
        return item

    def _outputs(self, feeds: FeedsLike) -> dict[str, np.ndarray]:
        return self._read_in_turn(self._encoded(feeds).ids, self._named)[0]

    def _read_in_turn(self, ids: np.ndarray, read: Callable[[np.ndarray], T]) -> tuple[T, float]:
        """The result of `read` for these word ids, and the seconds spent waiting for other threads."""
        asked_s = self._clock()
        with self._turns.lock:
            start_s = self._clock()
            self._make_ready()
            self._run_steps(self.runner.stage_of_ids(ids), len(ids))
            found = read(self.runner.numbers[0].copy())
            self._slow_down(start_s)  # an emulated slower device also looks up words and labels more slowly
            return found, start_s - asked_s

    def _run_steps(self, stage: BoundStage, n: int) -> None:
        execute_inline(_PROGRAM, lambda *_: stage.walk((n,), self._pool))

    def _timed(self, ids: np.ndarray) -> "TimedRun":
        from pliant.run.session.call_profile import (
            TimedRun,
        )  # imports tables, which runs do not need

        stage, lengths = self.runner.stage_of_ids(ids), (len(ids),)
        ends_s: list[np.ndarray] = []
        readings_s = execute_inline(_PROGRAM, lambda *_: ends_s.append(stage.walk_timed(lengths, self._pool)))
        return TimedRun(inline_spans(_PROGRAM, readings_s), ends_s)

    def _profiled(self, n: int, runs: "Sequence[TimedRun]") -> "Profile":
        from pliant.run.session.call_profile import profile_of

        return profile_of(bind(_PROGRAM, {_WORDS: n}), [self.runner.calls(n)], runs, self._pool.n_threads)

    def _make_ready(self) -> None:
        """Raise InputError once closed; load the model if it was freed for a shared budget."""
        if self._closed:
            raise InputError("this session is closed; open the model again.")
        self._thread.loaded_s += self.runner.load()

    def _planned(self, length: int) -> RecurrentPlan:
        times = self._times
        return RecurrentPlan(
            self.name,
            self.spec,
            self._pool.n_threads,
            length,
            bind(_PROGRAM, {_WORDS: length}),
            operator_calls(self.runner.calls(length)),
            self.runner.steps,
            self.weight_bytes,
            self.runner.arena_bytes,
            None if times is None or times.curve is None else times.curve.at(length),
        )
