"""Run submodels of one store under changing targets: plans, weights, kernels and threads."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import final

import numpy as np

from pliant.errors import BudgetError, InputError, StoreError
from pliant.ir.cost import DeviceProfile, Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import SliceRun
from pliant.ir.times.level_selector import Level
from pliant.models.tokenizer import TokenizedInput
from pliant.plan.plan import Plan, PlanMemory
from pliant.run.batches.text_batches import MOST_ROWS, group_texts
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.lanes import Lanes
from pliant.run.memory_use import MemoryUse
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.engine import Engine, runs_of
from pliant.run.submodel.pipeline import PipelineRun
from pliant.run.submodel.plans.memory_split import MemoryOverhead, memory_overhead, split_memory
from pliant.run.submodel.plans.plan_cache import BoundPlan, PlanCache
from pliant.run.submodel.plans.submodel_planner import SessionOptions, planner_of
from pliant.run.submodel.submodel_memory import check_limit, memory_use, with_half
from pliant.run.submodel.weight_memory import WeightMemory
from pliant.store.container import BLOCK
from pliant.store.read import Store


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """A text's outputs, float32 [labels] or [features], and the run of `n_rows` tokens that computed them."""

    numbers: np.ndarray
    bound: BoundPlan
    outcome: PipelineRun
    n_tokens: int
    n_rows: int


@final
class SubmodelRunner:
    """Runs the answers of a session; one caller at a time.

    Raises BudgetError when no submodel meets the target at `options.length`. `fixed` is a plan that runs for
    every target. `shared` is a budget shared with other sessions. The terms of the plans state the preload
    and working buffer within `options.memory_bytes`. With `frees_first`, old weights are freed before new
    ones are read, so that memory stays within its limit meanwhile; after damaged reads, fewer weights are in
    memory. `dilation` slows runs down to the emulated device; plans take it into account. `is_steady` limits
    each step of an emulated device to the profile's 95th percentile: at a dilation of 100 the sleeps are so
    long that the caches of this machine are cold afterwards. `n_changes` counts changes of weights in memory
    or terms, which make earlier plans outdated. `levels_cache` holds levels by `levels_key`.
    """

    def __init__(
        self,
        store: Store,
        device: DeviceProfile,
        options: SessionOptions,
        *,
        cache: Path | None = None,
        shared: MemoryBudget | None = None,
        fixed: Plan | None = None,
        frees_first: bool = False,
    ) -> None:
        self.store, self.device, self.options = store, device, options
        self.planner = planner_of(store.manifest, device)
        self._shared, self._fixed, self._frees_first = shared, fixed, frees_first
        self.dilation = device.dilation
        self._is_warm, self.is_steady, self.n_changes = False, False, 0
        self.levels_cache: dict[tuple[SessionOptions, int, bytes], list[Level]] = {}
        self.engine = Engine(
            store, n_threads=options.n_threads, cache=cache, tokens=options.length, compute=options.compute
        )
        # The CPU time of a thread does not depend on the other load of the machine.
        effort = time.thread_time if options.n_threads == 1 else None
        self.lanes = Lanes(("io",), emulated=EmulatedDevice(effort=effort))
        self.weights = WeightMemory(store, self.engine, self.lanes)
        overhead = memory_overhead(store, options.compute, self.engine.encoder.tokens)
        self._plans = PlanCache(self.planner, self.weights, options, overhead, fixed=fixed)
        try:
            self._replan(overhead)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all threads and free the memory; safe to call twice. The store stays open."""
        self.lanes.close()
        self._plans.clear()
        self.weights.clear()
        self.engine.close()
        self._plans.overhead = replace(self._plans.overhead, arena_bytes=0, fixed_bytes=0)
        if self._shared is not None:
            self._shared.release(self)

    def plan(self, n_tokens: int, target_s: float, *, as_profiled: bool = False) -> Plan:
        """The plan for inputs of `n_tokens` under a target, over the weights in memory; ready to run.

        With `as_profiled` it is for the device as profiled, independent of the latest answers. A target that
        no plan meets gives the smallest submodel.
        """
        bound = self.bound(n_tokens, target_s, as_profiled=as_profiled)
        if as_profiled:
            return bound.plan
        return self._plans.explain(bound, self.planner.bucket(n_tokens), target_s)

    @property
    def levels_key(self) -> tuple[SessionOptions, int, bytes]:
        """What plans for the device as profiled depend on: terms, tokens in memory, and planes held."""
        return self._plans.terms, self.engine.encoder.tokens, self.weights.planes().tobytes()

    def bound(self, n_tokens: int, target_s: float, *, as_profiled: bool = False) -> BoundPlan:
        """`plan(n_tokens, target_s)` with its pipeline."""
        return self._plans.get(self.planner.bucket(n_tokens), target_s, as_profiled=as_profiled)

    def answer(
        self,
        texts: Sequence[TokenizedInput],
        target_s: float,
        *,
        cpu_s: float = 0.0,
        as_profiled: bool = False,
        is_timed: bool = True,
    ) -> list[TextAnswer]:
        """Run all `texts` together, with the plan for one input of as many rows.

        An emulated device adds time for `cpu_s`, the CPU time of tokenising. Without `is_timed`, the run
        waits for late reads. Raises LaneError, chained to StoreError, on damage.
        """
        n_rows = sum(text.n_tokens for text in texts)
        self.reserve(n_rows)
        bound = self.bound(n_rows, target_s, as_profiled=as_profiled)
        return self._answered(texts, bound, cpu_s, is_timed)

    def answer_batches(
        self, texts: Sequence[TokenizedInput], target_s: float, *, cpu_s: float = 0.0
    ) -> Iterator[tuple[tuple[int, ...], list[TextAnswer]]]:
        """The indices of the texts of each batch, and their answers, batch by batch.

        Each text is answered with the plan that it would have alone; the planned bits run. Under a memory
        budget, a batch has at most as many rows as fit after making room for the longest text. An engagement
        plans anew after every run, so each text is a batch of its own. Raises as `answer` does.
        """
        cpu_s /= len(texts)
        if self.weights.keep_bytes is not None:
            for i, text in enumerate(texts):
                yield (i,), self.answer([text], target_s, cpu_s=cpu_s)
                self.count_kept()
            return
        self.reserve(max(text.n_tokens for text in texts))  # may free weights that plans are bound to
        plans = [self.bound(text.n_tokens, target_s) for text in texts]
        for numbers in group_texts([text.n_tokens for text in texts], plans, self.most_rows):
            batch = [texts[i] for i in numbers]
            self.reserve(sum(text.n_tokens for text in batch))  # what `memory` predicts grows with the arena
            n = len(batch)
            yield numbers, self._answered(batch, plans[numbers[0]], n * cpu_s, is_timed=n == 1)

    @property
    def most_rows(self) -> int:
        """The most tokens that run together: under a memory limit, the tokens that there is room for."""
        return self.engine.encoder.tokens if self._is_bounded else MOST_ROWS

    def observe(self, answered: TextAnswer, target_s: float, seconds: float, waited_s: float) -> None:
        """Adapt plans to this answer, which took `seconds`, of which `waited_s` were spent waiting."""
        if self.weights.keep_bytes is None:
            n, bucket = answered.n_tokens, self.planner.bucket(answered.n_tokens)
            spans = answered.outcome.spans
            self._plans.observe(answered.bound, spans, n, bucket, target_s, seconds, waited_s)

    def expected_accuracy(self, answered: TextAnswer) -> float | None:
        """The accuracy of the submodel at the bits that ran; None without measured accuracy."""
        errors = self.options.plan.errors
        return self.planner.expected_accuracy(answered.bound.plan, answered.outcome.bits, errors)

    def forecast(self, answered: TextAnswer) -> tuple[float, tuple[Span, ...]]:
        """The predicted time and spans of its run, by `Planner.forecast`."""
        known, n = answered.bound.forecasts, answered.n_rows
        if n not in known:
            known[n] = self.planner.forecast(answered.bound.pipeline.program, n)
        return known[n]

    def is_within_reach(self, answered: TextAnswer, target_s: float) -> bool:
        """Whether its plan is expected to meet the target for 95 % of answers, by recent observations."""
        length = self.planner.bucket(answered.n_tokens)
        return self._plans.is_within_reach(answered.bound, length, target_s)

    @property
    def held_bytes(self) -> int:
        """Bytes of weights in memory, and of the memory besides them."""
        return self.weights.n_bytes + self._plans.overhead.total_bytes

    @property
    def memory(self) -> MemoryUse:
        """The planned bytes, over all plans made so far, and the bytes in memory now."""
        return memory_use(self.options.memory_bytes, self.weights, self.engine, self._plans.overhead)

    def warm_up(self, short: TokenizedInput) -> None:
        """Plan for every bucket up to `options.length` and run each once, undilated, on tokens of `short`."""
        self._is_warm = True
        self.lanes.emulated.dilation = Dilation()
        target_s, longest = self.options.target_s, self.planner.bucket(self.options.length)
        try:
            for bucket in (n for n in self.device.lengths if n <= longest):
                n = min(bucket, self.options.length, self.store.spec.max_tokens)
                self.reserve(n)
                text = TokenizedInput(np.resize(short.ids, n), np.resize(short.types, n))
                self._run([text], self.bound(n, target_s))
        finally:
            self.lanes.drain()
        self._plans.plan_ahead(longest, target_s)

    def warm_again(self, short: TokenizedInput) -> None:
        """Repeat `warm_up`, if it was done before, after other plans replaced the warmed-up ones."""
        # An engagement plans anew after every run: warming up would keep weights that no request needed.
        if self._is_warm and self.weights.keep_bytes is None:
            self.warm_up(short)

    def reserve(self, n_tokens: int) -> None:
        """Make room for inputs of `n_tokens`; a no-op if there is room.

        Under a memory limit, weights are freed for the longer input's activations; with a shared budget, more
        of the budget is taken. Raises BudgetError, changing nothing, if there is not enough.
        """
        if n_tokens <= self.engine.encoder.tokens:
            return
        overhead = memory_overhead(self.store, self.options.compute, n_tokens)
        if self._is_bounded:
            self._replan(overhead)
        self.engine.reserve(n_tokens)
        self._plans.overhead = overhead

    def shrink(self, n_tokens: int) -> None:
        """Shrink activations to inputs of `n_tokens`, so that `retarget` has more memory for weights."""
        if n_tokens < self.engine.encoder.tokens:
            self.engine.encoder.reserve(n_tokens)
            self._plans.overhead = memory_overhead(self.store, self.options.compute, n_tokens)

    def retarget(
        self,
        target_s: float | None = None,
        preload_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """Change target, preload buffer or memory, and plan anew. Raises BudgetError, changing nothing.

        With a new memory limit, the planner chooses the preload buffer again, unless it is given too.
        """
        now = self.options if target_s is None else replace(self.options, target_s=target_s)
        if memory_bytes is not None:
            free = replace(now, preload_bytes=None, most_preload_bytes=None, most_working_bytes=None)
            now = replace(free, memory_bytes=memory_bytes)
        self._change(now if preload_bytes is None else replace(now, preload_bytes=preload_bytes))

    def _change(self, options: SessionOptions) -> None:
        """Plan anew by `options`. Raises BudgetError, changing nothing."""
        before, self.options = self.options, options
        try:
            self._replan(self._plans.overhead)
        except BaseException as error:
            if not (self._frees_first and isinstance(error, StoreError)):
                self.options = before
            raise

    def give_way(self) -> None:
        """Free half the preload buffer, top layers first, if any is held and the target can be met then."""
        kept, keep_bytes = self.weights.preload_bytes, self.weights.keep_bytes
        less = with_half(self.options, self._plans.terms, kept)
        if kept == 0 and keep_bytes is not None:
            self.weights.keep_bytes = keep_bytes // 2
        if kept == 0 or (less == self.options and keep_bytes is None):
            return
        try:  # not warmed up: a request may be waiting, and memory is short
            self._change(less)
        except BudgetError:
            return
        if keep_bytes is not None:  # so that an engagement's next runs keep less
            self.weights.keep_bytes = min(keep_bytes, kept // 2)

    def engage(self, keep_bytes: int) -> None:
        """Keep the weights that runs read, up to `keep_bytes`. Raises InputError inside an engagement."""
        if self.weights.keep_bytes is not None:
            raise InputError("this session is engaged already; leave that engagement before the next.")
        plan = self.bound(self.options.length, self.options.target_s).plan
        self._plans.terms = self._with_room(self._plans.terms, plan.memory, keep_bytes)
        self.weights.engage(keep_bytes)
        self.n_changes += 1
        self._plans.clear()

    def count_kept(self) -> None:
        """After a run of an engagement, plan the next run with the kept weights."""
        if self.weights.keep_bytes is not None:
            self.lanes.drain()
            self._plans.clear()

    def disengage(self) -> None:
        """End an engagement and free the kept weights."""
        self.weights.keep_bytes = None
        self._replan(self._plans.overhead)

    def _answered(
        self, texts: Sequence[TokenizedInput], bound: BoundPlan, cpu_s: float, is_timed: bool
    ) -> list[TextAnswer]:
        """As `answer`, with the plan `bound`."""
        emulated, most_s = self.lanes.emulated, inf
        if self.is_steady:
            costs = self.planner.undilated(sum(text.n_tokens for text in texts))
            emulated.most_s, most_s = costs.seconds, costs.tokenise_s / 2
        since_s = self._rest_host(emulated.host_s() - cpu_s, most_s)
        emulated.dilation = self.dilation.at_width(bound.plan.width)
        answered = self._run(texts, bound, is_timed=is_timed)
        self._rest_host(since_s, most_s)
        return answered

    def _run(
        self, texts: Sequence[TokenizedInput], bound: BoundPlan, *, is_timed: bool = True
    ) -> list[TextAnswer]:
        """One run over all texts."""
        lengths = tuple(text.n_tokens for text in texts)
        assert self.weights.is_bound(bound.pipeline)
        answers: list[np.ndarray] = []
        embed = partial(self.engine.embed_texts, texts)
        outcome = bound.pipeline.run(
            self.lanes,
            lengths,
            embed,
            lambda: answers.extend(self.engine.heads(lengths)),
            is_timed=is_timed,
        )
        return [
            TextAnswer(numbers, bound, outcome, n, sum(lengths))
            for numbers, n in zip(answers, lengths, strict=True)
        ]

    @property
    def _is_bounded(self) -> bool:
        return self._shared is not None or self.options.memory_bytes is not None

    def _rest_host(self, since_s: float, most_s: float = inf) -> float:
        return self.lanes.emulated.rest_host(self.lanes.own, since_s, self.dilation.compute, most_s)

    def _replan(self, overhead: MemoryOverhead) -> None:
        is_split = self._fixed is None and self.options.memory_bytes is not None
        terms = split_memory(self.planner, self.options, overhead) if is_split else self.options
        plan, runs = self._planned(terms, overhead)
        lacking = 0 if self._shared is None else plan.memory.total_bytes - self._shared.room_for(self)
        if lacking > 0:
            with suppress(BudgetError, InputError):  # without such a plan, the budget says what is free
                less = replace(terms, working_bytes=max(plan.memory.working_bytes - lacking, BLOCK))
                (plan, runs), terms = self._planned(less, overhead), less
        keep_bytes, most = self.weights.keep_bytes, terms.memory_bytes
        if keep_bytes is not None and most is not None:  # weights kept by an engagement may be freed too
            keep_bytes = min(keep_bytes, most - plan.memory.total_bytes + plan.memory.preload_bytes)
        terms = self._with_room(terms, plan.memory, keep_bytes)
        self.lanes.drain()
        before = self._plans.clear()  # after an interrupt no plan may use freed weights
        if self._frees_first:
            before = {}
            self._plans.terms, self._plans.overhead = terms, overhead
            self.weights.retain(runs)
        try:
            self.weights.fill(runs)
        except StoreError:
            self._plans.clear(before)
            raise
        self.weights.keep_bytes = keep_bytes
        self.n_changes += 1
        self._plans.renew(terms, overhead, plan)

    def _planned(self, terms: SessionOptions, overhead: MemoryOverhead) -> tuple[Plan, tuple[SliceRun, ...]]:
        """The plan for inputs of `options.length`, and the contents of the preload buffer."""
        sizes = {"arena_bytes": overhead.arena_bytes, "fixed_bytes": overhead.fixed_bytes}
        if self._fixed is not None:
            memory = replace(self._fixed.memory, **sizes)
            return replace(self._fixed, memory=memory), self._fixed.preload_runs
        plan, held = self.planner.plan_resident(terms, **sizes)
        return plan, runs_of(held)

    def _with_room(self, terms: SessionOptions, memory: PlanMemory, keep_bytes: int | None) -> SessionOptions:
        """The terms that fit in memory: for a plan of `memory`, plus the weights that an engagement keeps.

        Raises BudgetError if none fit.
        """
        kept = replace(memory, preload_bytes=max(keep_bytes or 0, memory.preload_bytes))
        check_limit(kept, self.options.memory_bytes)
        if self._shared is not None:
            self._shared.reserve_fixed(self, kept.total_bytes)
            # A shorter input's plan may want more than was reserved.
            terms = replace(terms, working_bytes=max(memory.working_bytes, BLOCK))
        if keep_bytes is None or terms.memory_bytes is None:
            return terms
        left = terms.memory_bytes - (kept.total_bytes - kept.working_bytes)
        return replace(terms, working_bytes=max(left, BLOCK))
