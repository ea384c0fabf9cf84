"""Run submodels of one store under targets that change: plans, weights, kernels and threads."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import final

import numpy as np

from pliant.errors import BudgetError, InputError, StoreError
from pliant.ir.cost import DeviceProfile, Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import Run
from pliant.ir.times.trade import Level
from pliant.models.tokenizer import Encoded
from pliant.plan.result import Plan, PlanMemory
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.lanes import Lanes
from pliant.run.memory_use import MemoryUse
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.batches import MOST_ROWS, batches
from pliant.run.submodel.engine import Engine, runs_of
from pliant.run.submodel.grant import MemoryBesideWeights, beside_weights, granted
from pliant.run.submodel.pipeline import Outcome
from pliant.run.submodel.planning import SessionOptions, planner_of
from pliant.run.submodel.plans import BoundPlan, Plans
from pliant.run.submodel.submodel_memory import memory_use
from pliant.run.submodel.weight_memory import WeightMemory
from pliant.store.container import BLOCK
from pliant.store.read import Store


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """A text's numbers, float32 [labels] or [features], and the run that gave them, of `n_rows` tokens."""

    numbers: np.ndarray
    bound: BoundPlan
    outcome: Outcome
    n_tokens: int
    n_rows: int


@final
class SubmodelRunner:
    """What a session runs its answers with; one caller at a time.

    Raises BudgetError when no submodel meets the target at `options.length`. `fixed` runs whatever the
    target. `shared` is a budget that other sessions take from as well. The plans' terms say what of
    `options.memory_bytes` is preload and working buffer.
    With `lets_go_first` weights go before others are read in their place, so that memory stays within its
    bound meanwhile; damaged weights then leave less in memory.
    `dilation` is how much slower runs are made than this machine's: as the device is, which plans know.
    `is_steady` has an emulated device count no step for more than the profile's 95th percentile: one that is
    a hundred times slower sleeps so long that this machine's caches are cold after it.
    `n_changes` counts what plans made before do not know of: other weights in memory, or other terms.
    `known_levels` are those of levels.py by options and tokens that there is room for.
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
        lets_go_first: bool = False,
    ) -> None:
        self.store, self.device, self.options = store, device, options
        self.planner = planner_of(store.manifest, device)
        self._shared, self._fixed, self._lets_go_first = shared, fixed, lets_go_first
        self._is_warm = False
        self.dilation = device.dilation
        self.is_steady = False
        self.n_changes = 0
        self.known_levels: dict[tuple[SessionOptions, int], list[Level]] = {}
        self.engine = Engine(
            store, n_threads=options.n_threads, cache=cache, tokens=options.length, compute=options.compute
        )
        # One thread's CPU time says what it did, whatever else this machine was busy with meanwhile.
        effort = time.thread_time if options.n_threads == 1 else None
        self.lanes = Lanes(("io",), emulated=EmulatedDevice(effort=effort))
        self.weights = WeightMemory(store, self.engine, self.lanes)
        beside = beside_weights(store, options.compute, self.engine.encoder.tokens)
        self._plans = Plans(self.planner, self.weights, options, beside, fixed=fixed)
        try:
            self._replan(beside)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all threads and give the memory back; safe to call twice. The store stays open."""
        self.lanes.close()
        self._plans.clear()
        self.weights.clear()
        self.engine.close()
        self._plans.beside = replace(self._plans.beside, arena_bytes=0, fixed_bytes=0)
        if self._shared is not None:
            self._shared.release(self)

    def plan(self, n_tokens: int, target_s: float, *, as_profiled: bool = False) -> Plan:
        """The plan for inputs of `n_tokens` under a target, over what is in memory; ready to run.

        With `as_profiled` it is for the device as it was profiled, whatever the latest answers took. A target
        that nothing meets gives the smallest submodel.
        """
        bound = self.bound(n_tokens, target_s, as_profiled=as_profiled)
        if as_profiled:
            return bound.plan
        return self._plans.explained(bound, self.planner.bucket(n_tokens), target_s)

    def bound(self, n_tokens: int, target_s: float, *, as_profiled: bool = False) -> BoundPlan:
        """`plan(n_tokens, target_s)`, and what runs it."""
        return self._plans.get(self.planner.bucket(n_tokens), target_s, as_profiled=as_profiled)

    def answer(
        self,
        texts: Sequence[Encoded],
        target_s: float,
        *,
        cpu_s: float = 0.0,
        as_profiled: bool = False,
        is_timed: bool = True,
    ) -> list[TextAnswer]:
        """Run the plan for one input with the rows of all `texts` over them.

        An emulated device takes longer for the `cpu_s` that tokenising took. Unless it `is_timed`, late reads
        are waited for. Raises LaneError, chained to StoreError, on damage.
        """
        n_rows = sum(text.n_tokens for text in texts)
        self.reserve(n_rows)
        bound = self.bound(n_rows, target_s, as_profiled=as_profiled)
        return self._answered(texts, bound, cpu_s, is_timed)

    def answer_batches(
        self, texts: Sequence[Encoded], target_s: float, *, cpu_s: float = 0.0
    ) -> Iterator[tuple[tuple[int, ...], list[TextAnswer]]]:
        """The numbers of the texts of each batch, and their answers, batch by batch.

        Each text is answered by the plan that it would have alone; the bits that run are those planned. Under
        a budget of memory a batch has no more rows than there is room for once the longest text has it.
        An engagement plans anew after every run, so that each text is a batch. Raises as `answer` does.
        """
        cpu_s /= len(texts)
        if self.weights.keep_bytes is not None:
            for i, text in enumerate(texts):
                yield (i,), self.answer([text], target_s, cpu_s=cpu_s)
                self.count_kept()
            return
        self.reserve(max(text.n_tokens for text in texts))  # may change the weights that plans are bound to
        plans = [self.bound(text.n_tokens, target_s) for text in texts]
        for numbers in batches([text.n_tokens for text in texts], plans, self.most_rows):
            batch = [texts[i] for i in numbers]
            self.reserve(sum(text.n_tokens for text in batch))  # what `memory` predicts grows with the arena
            n = len(batch)
            yield numbers, self._answered(batch, plans[numbers[0]], n * cpu_s, is_timed=n == 1)

    @property
    def most_rows(self) -> int:
        """Tokens that run together at most: within a bound of memory, what there is room for."""
        return self.engine.encoder.tokens if self._is_bounded else MOST_ROWS

    def observe(self, answered: TextAnswer, target_s: float, seconds: float, waited_s: float) -> None:
        """Plan for the device as it was for this answer, which took `seconds`, `waited_s` of them waiting."""
        if self.weights.keep_bytes is None:
            n, bucket = answered.n_tokens, self.planner.bucket(answered.n_tokens)
            spans = answered.outcome.spans
            self._plans.observe(answered.bound, spans, n, bucket, target_s, seconds, waited_s)

    def expected(self, answered: TextAnswer) -> float | None:
        """The accuracy of the submodel at the bits that ran; None where it was never measured."""
        errors = self.options.plan.errors
        return self.planner.expected(answered.bound.plan, answered.outcome.bits, errors)

    def forecast(self, answered: TextAnswer) -> tuple[float, tuple[Span, ...]]:
        """What its run was predicted to take, as `Planner.forecast` says."""
        known, n = answered.bound.forecasts, answered.n_rows
        if n not in known:
            known[n] = self.planner.forecast(answered.bound.pipeline.program, n)
        return known[n]

    def is_within_reach(self, answered: TextAnswer, target_s: float) -> bool:
        """Whether its plan is to keep the target for 95 of 100 answers, by what was observed lately."""
        length = self.planner.bucket(answered.n_tokens)
        return self._plans.is_within_reach(answered.bound, length, target_s)

    @property
    def held_bytes(self) -> int:
        """Bytes of weights in memory, and of what there is beside them."""
        return self.weights.n_bytes + self._plans.beside.total_bytes

    @property
    def memory(self) -> MemoryUse:
        """What was planned, over all plans made so far, and what of it is in memory now."""
        return memory_use(self.options.memory_bytes, self.weights, self.engine, self._plans.beside)

    def warm_up(self, short: Encoded) -> None:
        """Plan for every bucket up to `options.length` and run each once, undilated, on tokens of `short`."""
        self._is_warm = True
        self.lanes.emulated.dilation = Dilation()
        target_s, longest = self.options.target_s, self.planner.bucket(self.options.length)
        try:
            for bucket in (n for n in self.device.lengths if n <= longest):
                n = min(bucket, self.options.length, self.store.spec.max_tokens)
                self.reserve(n)
                text = Encoded(np.resize(short.ids, n), np.resize(short.types, n))
                self._run([text], self.bound(n, target_s))
        finally:
            self.lanes.drain()
        self._plans.plan_ahead(longest, target_s)

    def warm_again(self, short: Encoded) -> None:
        """`warm_up` where that was done before, as other plans have taken the place of those it made."""
        # An engagement plans anew after every run: warming up would read and keep what no request asked for.
        if self._is_warm and self.weights.keep_bytes is None:
            self.warm_up(short)

    def reserve(self, n_tokens: int) -> None:
        """Make room for inputs of `n_tokens`; a no-op where there is.

        Within a bound of memory, weights give way to the longer input's activations; of a shared budget more
        is taken. Raises BudgetError, changing nothing, where that cannot be.
        """
        if n_tokens <= self.engine.encoder.tokens:
            return
        beside = beside_weights(self.store, self.options.compute, n_tokens)
        if self._is_bounded:
            self._replan(beside)
        self.engine.reserve(n_tokens)
        self._plans.beside = beside

    def shrink(self, n_tokens: int) -> None:
        """Have room for inputs of `n_tokens` alone: `retarget` then finds more memory for weights."""
        if n_tokens < self.engine.encoder.tokens:
            self.engine.encoder.reserve(n_tokens)
            self._plans.beside = beside_weights(self.store, self.options.compute, n_tokens)

    def retarget(
        self,
        target_s: float | None = None,
        preload_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """Change target, preload buffer or memory, and plan anew. Raises BudgetError, changing nothing.

        With a new bound of memory, the preload buffer is the planner's choice again, unless it is given too.
        """
        before = self.options
        preload = before.preload_bytes if memory_bytes is None else None
        self.options = replace(
            before,
            target_s=before.target_s if target_s is None else target_s,
            preload_bytes=preload if preload_bytes is None else preload_bytes,
            memory_bytes=before.memory_bytes if memory_bytes is None else memory_bytes,
        )
        try:
            self._replan(self._plans.beside)
        except BaseException as error:
            if not (self._lets_go_first and isinstance(error, StoreError)):
                self.options = before
            raise

    def give_way(self) -> None:
        """Let go of half the preload buffer, top layers first; keep it where the target could not be met."""
        # More may have been asked for than the model has.
        kept, keep_bytes = self.weights.preload_bytes, self.weights.keep_bytes
        held = min(self._plans.terms.preload_bytes or 0, kept)
        try:  # not warmed up: this may stand before a request, and memory is short
            self.retarget(preload_bytes=held // 2)
        except BudgetError:
            return
        if keep_bytes is not None:  # the next runs of an engagement must not keep as much again
            self.weights.keep_bytes = min(keep_bytes, kept // 2)

    def engage(self, keep_bytes: int) -> None:
        """Keep what runs read, up to `keep_bytes`. Raises InputError where that is done already."""
        if self.weights.keep_bytes is not None:
            raise InputError("this session is engaged already; leave that engagement before the next.")
        plan = self.bound(self.options.length, self.options.target_s).plan
        self._plans.terms = self._with_room(self._plans.terms, plan.memory, keep_bytes)
        self.weights.engage(keep_bytes)
        self.n_changes += 1
        self._plans.clear()

    def count_kept(self) -> None:
        """After a run of an engagement, plan the next one with what was kept."""
        if self.weights.keep_bytes is not None:
            self.lanes.drain()
            self._plans.clear()

    def disengage(self) -> None:
        """Let go of what was kept."""
        self.weights.keep_bytes = None
        self._replan(self._plans.beside)

    def _answered(
        self, texts: Sequence[Encoded], bound: BoundPlan, cpu_s: float, is_timed: bool
    ) -> list[TextAnswer]:
        """As `answer`, by `bound`."""
        emulated, most_s = self.lanes.emulated, inf
        if self.is_steady:
            costs = self.planner.undilated(sum(text.n_tokens for text in texts))
            emulated.most_s, most_s = costs.seconds, costs.tokenise_s / 2
        since_s = self._rest_host(emulated.host_s() - cpu_s, most_s)
        emulated.dilation = self.dilation.at_width(bound.plan.width)
        answered = self._run(texts, bound, is_timed=is_timed)
        self._rest_host(since_s, most_s)
        return answered

    def _run(self, texts: Sequence[Encoded], bound: BoundPlan, *, is_timed: bool = True) -> list[TextAnswer]:
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
        emulated = self.lanes.emulated
        return emulated.rest_host(self.lanes.own, since_s, self.dilation.compute, most_s)

    def _replan(self, beside: MemoryBesideWeights) -> None:
        is_split = self._fixed is None and self.options.memory_bytes is not None
        terms = granted(self.planner, self.options, beside) if is_split else self.options
        plan, runs = self._planned(terms, beside)
        keep_bytes, most = self.weights.keep_bytes, terms.memory_bytes
        if keep_bytes is not None and most is not None:  # what an engagement keeps gives way like the rest
            keep_bytes = min(keep_bytes, most - plan.memory.total_bytes + plan.memory.preload_bytes)
        terms = self._with_room(terms, plan.memory, keep_bytes)
        self.lanes.drain()
        before = self._plans.clear()  # after an interrupt none counts on what is let go of
        if self._lets_go_first:
            before = {}
            self._plans.terms, self._plans.beside = terms, beside
            self.weights.let_go(runs)
        try:
            self.weights.fill(runs)
        except StoreError:
            self._plans.clear(before)
            raise
        self.weights.keep_bytes = keep_bytes
        self.n_changes += 1
        self._plans.renew(terms, beside, plan)

    def _planned(self, terms: SessionOptions, beside: MemoryBesideWeights) -> tuple[Plan, tuple[Run, ...]]:
        """The plan for inputs of `options.length`, and what the preload buffer holds."""
        sizes = {"arena_bytes": beside.arena_bytes, "fixed_bytes": beside.fixed_bytes}
        if self._fixed is not None:
            memory = replace(self._fixed.memory, **sizes)
            return replace(self._fixed, memory=memory), self._fixed.preload_runs
        plan, held = self.planner.resident(terms, **sizes)
        return plan, runs_of(held)

    def _with_room(self, terms: SessionOptions, memory: PlanMemory, keep_bytes: int | None) -> SessionOptions:
        """The terms for which there is room: those of a plan of `memory`, beside what an engagement keeps.

        Raises BudgetError where there is none.
        """
        kept = replace(memory, preload_bytes=max(keep_bytes or 0, memory.preload_bytes))
        self._check_bound(kept)
        if self._shared is not None:
            self._shared.reserve(self, kept.total_bytes)
        if keep_bytes is None or terms.memory_bytes is None:
            return terms
        left = terms.memory_bytes - (kept.total_bytes - kept.working_bytes)
        return replace(terms, working_bytes=max(left, BLOCK))

    def _check_bound(self, memory: PlanMemory) -> None:
        """Raise BudgetError for more than the session may add to its process."""
        most = self.options.memory_bytes
        if most is not None and memory.total_bytes > most:
            raise BudgetError(
                f"this takes {memory.total_bytes} bytes, {memory.preload_bytes} of them kept between runs, "
                f"but the session's memory is {most}: keep less, or give at least {memory.total_bytes} bytes."
            )
