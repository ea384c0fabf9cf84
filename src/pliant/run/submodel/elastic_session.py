"""A text encoder with a latency target and a preload buffer, which determine its depth, width and bits.

A session has one store and one device profile; `api` finds, packs and profiles models.
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from pliant.errors import InputError
from pliant.ir.curve import Curve
from pliant.ir.device import DeviceProfile
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.ir.times.level_selector import LevelSelector
from pliant.ir.times.timing import Percentile
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.models.tokenizer import TokenizedInput, open_tokenizer, refuse_padding
from pliant.plan.plan import Plan
from pliant.quantities import check_whole, parse_bytes, parse_seconds
from pliant.run.batches.text_batches import group_texts
from pliant.run.memory_use import MemoryNeed, MemoryUse
from pliant.run.pressure import PressureFlag
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.feeds import FeedsLike
from pliant.run.session.ports import describe_session
from pliant.run.session.text_session import TextInput, TextSession
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_replies import AnswerTimes, make_replies
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.run.submodel.request_plans import RequestPlans, batch_key
from pliant.run.submodel.submodel_runner import SubmodelRunner, TextAnswer
from pliant.run.submodel.submodel_share import SubmodelShare
from pliant.store.read import Store

if TYPE_CHECKING:
    from pliant.run.session.program_profile import ProgramProfile

_MOST_TOGETHER = 64


@final
class ElasticSession(TextSession[ElasticDetails]):
    """Answers text or token ids within a latency target. Closing the session leaves the store open.

    Inputs of another length than `options.length` run with a plan of their own bucket over the same
    preload buffer. Raises BudgetError when no submodel meets the target at `options.length`.

    A list of texts is answered in batches without padding, each text with the plan that it has alone. The
    target applies to each text; `reply.seconds` is the time until the end of its batch.

    With a shared budget `memory` and no given preload buffer, the preload buffer is what the budget allows,
    and answers are serialised with those of the other sessions.

    A call is answered under the session's target or its own, by plans that adapt to the times of the latest
    answers unless `options.adapts` is off. A `Request` is answered by the plan that `LevelSelector.pick`
    chooses for its deadline and its accuracy floor (`trade`), over the same buffer. Open a session that
    serves only requests with the target `NO_TARGET_S`, for the best answers.
    """

    platform = "pliant_session"

    def __init__(
        self,
        store: Store,
        device: DeviceProfile,
        options: SessionOptions,
        *,
        name: str | None = None,
        identity: str | None = None,
        cache: Path | None = None,
        memory: MemoryBudget | None = None,
        fixed: Plan | None = None,
    ) -> None:
        spec = store.spec
        super().__init__(
            name or store.path.name,
            identity or store.identity,
            labels=spec.head.labels,
            features=spec.hidden,
            max_length=spec.max_tokens,
            vocab=spec.vocab,
            dilation=device.dilation,
        )
        self.store, self.device = store, device
        self._tokenizer = open_tokenizer(store.path, spec)
        self._turns, self._closed = ForkSafeLock(), False
        self.share: SubmodelShare | None = None
        if memory is not None and options.preload_bytes is None and fixed is None:
            self.share, self._turns = SubmodelShare(memory, self.name, self._renew_trade), memory.turns
            self.budgeted = self.share
            with self._turns.lock:
                self.runner = self.share.open_runner(store, device, options, cache)
                self._plans = RequestPlans(self.runner, self.name, self.share)
        else:
            self.runner = SubmodelRunner(store, device, options, cache=cache, shared=memory, fixed=fixed)
            self._plans = RequestPlans(self.runner, self.name, memory, fixed)
        self._pressure = PressureFlag() if options.yields else None

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.options.n_threads} threads"
        return describe_session(f"ElasticSession of {self.name}", self.inputs, self.outputs, state)

    @property
    def options(self) -> SessionOptions:
        """The options of the last open or retarget."""
        return self.runner.options

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in memory: preload buffer and working buffer."""
        return self.runner.weights.n_bytes

    @property
    def memory(self) -> MemoryUse:
        """The memory that the session adds to its process, predicted and measured; it prints as a table.

        The working buffer is predicted as the largest of all plans made so far.
        """
        with self._turns.lock:
            return self.runner.memory

    @property
    def plan(self) -> Plan:
        """The plan for inputs of `options.length` tokens."""
        with self._turns.lock:
            self._check_open()
            return self.runner.plan(self.options.length, self.options.target_s)

    def explain(self, length: int) -> Plan:
        """The plan for an input of `length` tokens under the session's target, with its reasons; it prints as
        a page.

        Raises InputError for a length below 1 or above the model's limit.
        """
        check_whole(length, "length")
        if not 1 <= length <= self.max_length:
            raise InputError(f"a text of {length} tokens is not read; give 1 to {self.max_length}.")
        return self.plan_at(length, self.options.target_s)

    def plan_at(self, n_tokens: int, latency: str | float) -> Plan:
        """The plan for inputs of `n_tokens` under another target, over the same buffer.

        The plan is then ready to run. A target that no plan meets gives the smallest submodel.
        """
        with self._turns.lock:
            self._check_open()
            return self.runner.plan(n_tokens, parse_seconds(latency))

    def forecast(self, n_tokens: int, latency: str | float, percentile: Percentile = "median") -> float:
        """Seconds from text to answer of `plan_at(n_tokens, latency)`, by the profile."""
        with self._turns.lock:
            self._check_open()
            program = self.runner.bound(n_tokens, parse_seconds(latency)).pipeline.program
            return self.runner.planner.forecast(program, n_tokens, percentile)[0]

    def encode(self, text: str, pair: str | None = None) -> TokenizedInput:
        return self._tokenizer.encode(text, pair)

    def truncate(self, text: str, pair: str | None = None) -> tuple[str, str | None]:
        return self._tokenizer.truncate(text, pair)

    def profile(self, feeds: FeedsLike | str, runs: int = 20) -> "ProgramProfile":
        """The profile of an answer to a text or to feeds: its steps, measured and predicted."""
        from pliant.run.session.program_profile import profile_of  # imports tables, which answers do not need

        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        given = {"text": feeds} if isinstance(feeds, str) else feeds
        replies = [self._answer(self._input_of_feeds(given), None) for _ in range(runs + 1)]
        return profile_of(replies[1:], f"{self.options.n_threads} threads")

    # Endpoint methods

    def sample(self, length: int) -> dict[str, np.ndarray]:
        """`ids` of `length` text tokens, without padding."""
        short = self.encode("a").ids
        return {"ids": np.resize(short, max(1, length))[None].astype(np.int64)}

    @property
    def trade(self) -> LevelSelector:
        """Accuracy against time: the plans for requests, made on first use.

        It is renewed when the weights in memory change, so that a node reads it without waiting.
        """
        found = self._plans.single
        if found is None:
            with self._turns.lock:
                self._check_open()
                found = self._plans.renew()
        return found

    @property
    def best(self) -> float | None:
        """The accuracy of the whole model; None where it was never measured."""
        return self.trade.best

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by number of tokens of answers of at least that accuracy. Raises BudgetError."""
        return self._plans.limit.curve(self.trade.curve(accuracy_floor))

    def levels(self) -> tuple[ServiceLevel, ...]:
        """A few of the accuracies available now, worst first, with time bounds."""
        return self._plans.limit.levels(self.trade.levels())

    def most_length(self, like: Request | None = None) -> int | None:
        return self._plans.limit.most_tokens

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        load_bytes = self.trade.load_bytes(length, accuracy)
        return MemoryNeed(self.runner.held_bytes, self.options.memory_bytes, load_bytes)

    def look_again(self) -> None:
        """Divide the shared budget among the models anew, by their recent request rates."""
        if self.share is not None:
            self.share.rebalance()

    def estimate(self, request: Request) -> Estimate:
        """The estimated time of `answer` now; safe to call during `answer` on another thread. The first call
        takes as long as planning. Raises BudgetError for too long an input or too high an accuracy floor.
        """
        pick = self.trade.pick(request.length, request.accuracy_floor, request.deadline_s)
        self._plans.limit.check(request.length)
        return Estimate(pick.time.median_s, pick.level.accuracy, pick.time.p95_s)

    def answer(self, request: Request) -> Reply[ElasticDetails]:
        """The reply of the submodel that fits the time left until the deadline.

        Raises BudgetError for an accuracy floor that cannot be met, InputError, and LaneError from StoreError
        on damage.
        """
        return self.answers((request,))[0]

    @property
    def most_together(self) -> int:
        return _MOST_TOGETHER

    @property
    def most_items_together(self) -> int:
        return self.runner.most_rows

    def together(self, request: Request) -> Hashable | None:
        return batch_key(request)

    def answers(self, requests: Sequence[Request]) -> list[Reply[ElasticDetails]]:
        """The replies to requests of one key by one plan, which meets the earliest deadline and the highest
        accuracy floor. If memory is too small for all at once, they run in several batches.

        Raises what `answer` does.
        """
        inputs = [self._input_of_request(request) for request in requests]
        lengths = [one.encoded.n_tokens for one in inputs]
        replies: dict[int, Reply[ElasticDetails]] = {}
        with self._turns.lock:
            self._make_ready(max(lengths))
            # Weights may be freed for a longer input; this must happen before plans are compared.
            self.runner.reserve(max(lengths))
            for numbers in group_texts(lengths, [None] * len(inputs), self.runner.most_rows):
                some = [requests[i] for i in numbers], [inputs[i] for i in numbers]
                replies |= zip(numbers, self._plans.answer(*some, self._replies), strict=True)
        return [replies[i] for i in range(len(inputs))]

    # Methods that change the session

    def warm_up(self) -> None:
        """Plan for every bucket up to `options.length` and run each once, undilated, on a text of its length,
        so that requests do not pay the extra cost of a first run (planning, kernel tables, fresh pages). A
        warm session is warmed up again when it is retargeted. Raises the errors of a request.
        """
        with self._turns.lock:
            self._check_open()
            self.runner.warm_up(self.encode("a"))

    def retarget(
        self,
        latency: str | float | None = None,
        preload: str | int | None = None,
        memory: str | int | None = None,
    ) -> None:
        """Change target, buffer or memory, replan, and warm up if the session was warm before.

        A new memory limit is split by the planner anew, with `preload` fixed if it is given. Raises
        BudgetError, changing nothing, if no plan fits, and InputError if no argument is given.
        """
        if latency is None and preload is None and memory is None:
            raise InputError(
                "there is nothing to change: give latency, such as '10ms', preload, or memory, such as '8MB'."
            )
        if self.share is not None:
            self.share.check_retarget(preload, memory)
        target_s = None if latency is None else parse_seconds(latency)
        preload_bytes, memory_bytes = (None if x is None else parse_bytes(x) for x in (preload, memory))
        with self._turns.lock:
            self._check_open()
            if self.share is not None and target_s is not None:
                self.share.retarget(target_s)
            else:
                self.runner.retarget(target_s, preload_bytes, memory_bytes)
            self.runner.warm_again(self.encode("a"))
            self._renew_trade()

    def give_way(self) -> None:
        """Free half the preload buffer, top layers first, unless the target could then not be met."""
        with self._turns.lock:
            self._check_open()
            if self._pressure is not None:
                self._pressure.take()
            self.runner.give_way()
            self._renew_trade()

    @contextmanager
    def engagement(self, preload: str | int) -> Iterator["ElasticSession"]:
        """Several executions back to back (STI 3.3): weights that one execution reads are kept, up to
        `preload`, bottom layers first, and the saved IO loads higher fidelity in the next. The end restores
        the buffer. Answers on other threads in the meantime belong to the engagement. Raises InputError
        inside another one.
        """
        keep_bytes = parse_bytes(preload)
        with self._turns.lock:
            self._check_open()
            self.runner.engage(keep_bytes)
            self._renew_trade()
        try:
            yield self
        finally:
            with self._turns.lock:
                if not self._closed:
                    self.runner.disengage()
                    self.runner.warm_again(self.encode("a"))
                    self._renew_trade()

    def close(self) -> None:
        """Stop all threads and free the memory; safe to call twice."""
        with self._turns.lock:
            self._closed = True
            if self._pressure is not None:
                self._pressure.close()
            self.runner.close()
            if self.share is not None:
                self.share.release()

    def _encoded(self, feeds: FeedsLike) -> TokenizedInput:
        encoded = super()._encoded(feeds)
        refuse_padding(encoded.ids, self.store.spec)
        return encoded

    def _answers(self, inputs: Sequence[TextInput], target_s: float | None) -> list[Reply[ElasticDetails]]:
        if len(inputs) < 2:
            return [self._answer(one, target_s) for one in inputs]
        replies: dict[int, Reply[ElasticDetails]] = {}
        ready_s, cpu_s = time.perf_counter(), sum(one.cpu_s for one in inputs)
        with self._turns.lock:
            waited_s = time.perf_counter() - ready_s
            self._make_ready(max(one.encoded.n_tokens for one in inputs))
            target_s = self.options.target_s if target_s is None else target_s
            texts = [one.encoded for one in inputs]
            for numbers, answered in self.runner.answer_batches(texts, target_s, cpu_s=cpu_s):
                end_s = time.perf_counter()
                times = [AnswerTimes(end_s - inputs[i].start_s, waited_s, target_s) for i in numbers]
                replies |= zip(numbers, self._replies(answered, times), strict=True)
        return [replies[i] for i in range(len(inputs))]

    def _answer(self, item: TextInput, target_s: float | None) -> Reply[ElasticDetails]:
        with self._turns.lock:
            waited_s = time.perf_counter() - item.ready_s
            self._make_ready(item.encoded.n_tokens)
            target_s = self.options.target_s if target_s is None else target_s
            (answered,) = self.runner.answer([item.encoded], target_s, cpu_s=item.cpu_s)
            seconds = time.perf_counter() - item.start_s
            self.runner.observe(answered, target_s, seconds, waited_s)
            times = AnswerTimes(time.perf_counter() - item.start_s, waited_s, target_s)
            (reply,) = self._replies([answered], [times])
            self.runner.count_kept()
            return reply

    def _renew_trade(self) -> None:
        """With the lock held: renew the trade, if it was used, after the weights in memory changed."""
        if self._plans.single is not None:
            self._plans.renew()

    def _replies(
        self, answered: Sequence[TextAnswer], times: Sequence[AnswerTimes]
    ) -> list[Reply[ElasticDetails]]:
        return make_replies(self.runner, self.name, answered, times, self.outputs_of)

    def _make_ready(self, n_tokens: int) -> None:
        """Raise InputError once closed; free memory if it is short; make room for `n_tokens`."""
        self._check_open()
        if self._pressure is not None and self._pressure.take():
            self.runner.give_way()
        if self.share is not None:
            self.share.count_request(n_tokens)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this session is closed; open the model again.")
