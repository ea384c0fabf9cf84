"""A model opened under a latency target and a preload buffer: plan, preload, answer, retarget, close.

A session has one store and one device profile; `api` finds, packs and profiles models.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import final

import numpy as np

from pliant.errors import BudgetError, InputError, StoreError
from pliant.ir.cost import DeviceProfile, Span, cost_table, latency, simulate
from pliant.ir.device import Percentile
from pliant.ir.program import Run
from pliant.kernels.runtime.turns import Turns
from pliant.models.tokenizer import Encoded, open_tokenizer
from pliant.plan.result import Plan
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.lanes import Lanes
from pliant.run.pressure import PressureWatch
from pliant.run.process_memory import MemoryBudget, peak_rss_bytes
from pliant.run.submodel.engine import Engine, runs_of
from pliant.run.submodel.pipeline import Outcome, Pipeline, Ring
from pliant.run.submodel.planning import SessionOptions as SessionOptions
from pliant.run.submodel.planning import planner_of
from pliant.run.submodel.plans import PlanKey, Plans
from pliant.run.submodel.preload_buffer import PreloadBuffer
from pliant.run.submodel.reply import Reply, softmax
from pliant.store.read import Store


@final
class Session:
    """A context manager. Threads may share it and take turns. Closing it leaves the store open.

    A forked child may use it, with threads of its own. `close` waits for the answer under way; afterwards
    InputError is raised.

    Inputs of another length than `options.length` run with a plan of their own bucket over the same
    preload buffer. Raises BudgetError when no submodel meets the target at `options.length`.
    """

    def __init__(
        self,
        store: Store,
        profile: DeviceProfile,
        options: SessionOptions,
        *,
        cache: Path | None = None,
        memory: MemoryBudget | None = None,
        fixed: Plan | None = None,
    ) -> None:
        self.store = store
        self.profile = profile
        self.options = options
        self.io_slowdown = profile.dilation.io
        self._memory = memory
        self._fixed = fixed
        self._tokenizer = open_tokenizer(store.path, store.spec)
        self._planner = planner_of(store.manifest, profile)
        self._preload = PreloadBuffer()
        self._ring = Ring()
        self._keep_bytes: int | None = None
        self._plans: Plans[Pipeline] = Plans(
            profile,
            self._make,
            lambda length: self._planner.least_s(self.options, length, self._held()),
            margin=options.margin,
            adapts=options.adapts and fixed is None,
        )
        self._is_warm = False
        self._turns, self._process, self._closed = Turns(), os.getpid(), False
        self.engine = Engine(
            store, n_threads=options.n_threads, cache=cache, tokens=options.length, compute=options.compute
        )
        # One thread's CPU time says what it did, whatever else this machine was busy with meanwhile.
        self._lanes = Lanes(("io",), effort=time.thread_time if options.n_threads == 1 else None)
        self._watch_pressure()
        try:
            self._replan()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all threads and give the memory back; safe to call twice."""
        with self._turns.lock:
            self._closed = True
            if self._pressure is not None:
                self._pressure.close()
            self._lanes.close()
            self.engine.close()
            if self._memory is not None:
                self._memory.release(self)

    @property
    def plan(self) -> Plan:
        """The plan for inputs of `options.length` tokens."""
        with self._turns.lock:
            return self._explained(self.options.length, self.options.latency_s)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in memory: preload buffer and working buffer."""
        return self._preload.n_bytes + self._ring.n_bytes

    def plan_at(self, n_tokens: int, latency: str | float) -> Plan:
        """The plan by which inputs of `n_tokens` are answered under another target, over the same buffer.

        It is ready to run from then on. A target that nothing meets gives the smallest submodel.
        """
        target_s = parse_seconds(latency)
        with self._turns.lock:
            self._check_open()
            return self._explained(n_tokens, target_s)

    def forecast(self, n_tokens: int, latency: str | float, percentile: Percentile = "median") -> float:
        """Seconds from text to answer of `plan_at(n_tokens, latency)`, by the profile."""
        target_s = parse_seconds(latency)
        with self._turns.lock:
            self._check_open()
            return self._forecast(self._pipeline(n_tokens, target_s), n_tokens, percentile)[0]

    def __call__(self, text: str, pair: str | None = None, *, latency: str | float | None = None) -> Reply:
        """Answer one text, or a pair of texts, under a target of its own where `latency` is given.

        The preload buffer stays as it is: see `plan_at`. Raises InputError, StoreError (in LaneError) on
        damage.
        """
        start, cpu_s = time.perf_counter(), time.thread_time()
        encoded = self._tokenizer.encode(text, pair)
        target_s = None if latency is None else parse_seconds(latency)
        asked = time.perf_counter()
        with self._turns.lock:
            waited_s = time.perf_counter() - asked
            host_s = self._lanes.rest_host(cpu_s - self._lanes.step_cpu_s, self.profile.dilation.compute)
            return self._answer(encoded, target_s, start, waited_s, host_s)

    def _answer(
        self, encoded: Encoded, latency_s: float | None, start: float, waited_s: float, host_s: float
    ) -> Reply:
        self._check_open()
        if self._is_pressed.is_set():
            self._give_way()
        n = encoded.n_tokens
        self.engine.reserve(n)
        target_s = self.options.latency_s if latency_s is None else latency_s
        pipeline = self._pipeline(n, target_s)
        self._lanes.dilation = {"cpu": self.profile.dilation.factor(pipeline.plan.width)}
        answers: list[np.ndarray] = []
        outcome = pipeline.run(
            self._lanes,
            n,
            lambda: self.engine.embed(encoded.ids, encoded.types),
            lambda: answers.append(self.engine.head(n)),
        )
        self._lanes.rest_host(host_s, self.profile.dilation.compute)
        if self._keep_bytes is None:
            length, seconds = self._planner.bucket(n), time.perf_counter() - start
            self._plans.observe(pipeline, outcome.spans, n, length, target_s, seconds, waited_s)
        seconds = time.perf_counter() - start
        reply = self._reply(answers[0], (seconds, waited_s, target_s), n, pipeline, outcome)
        if self._keep_bytes is not None:
            self._replan_held()
        return reply

    def warm_up(self) -> None:
        """Plan for every bucket up to `options.length` and run each once, undilated, on a text of its length:
        what only a first run pays (planning, kernel tables, fresh pages) is then paid before any request.
        A session that is warm stays so when it is retargeted. Raises what a request would."""
        with self._turns.lock:
            self._check_open()
            self._warm_up()

    def _warm_up(self) -> None:
        self._is_warm = True
        io_slowdown, self.io_slowdown = self.io_slowdown, 1.0
        self._lanes.dilation = {}
        short = self._tokenizer.encode("a")
        try:
            for bucket in (n for n in self.profile.lengths if n <= self._planner.bucket(self.options.length)):
                n = min(bucket, self.options.length, self.store.spec.max_tokens)
                ids, types = np.resize(short.ids, n), np.resize(short.types, n)
                self.engine.reserve(n)
                answers: list[np.ndarray] = []

                def head(n: int = n, answers: list[np.ndarray] = answers) -> None:
                    answers.append(self.engine.head(n))

                self._pipeline(n).run(self._lanes, n, partial(self.engine.embed, ids, types), head)
        finally:
            self._lanes.drain()
            self.io_slowdown = io_slowdown
        self._plans.plan_ahead(self._planner.bucket(self.options.length), self.options.latency_s)

    def retarget(self, latency: str | float | None = None, preload: str | int | None = None) -> None:
        """Change target or buffer, replan, and warm up if the session was warm before.

        Raises BudgetError, changing nothing, when that cannot be, and InputError when neither is given.
        """
        if latency is None and preload is None:
            raise InputError("there is nothing to change: give latency, such as '10ms', or preload, or both.")
        with self._turns.lock:
            self._check_open()
            self._retarget(latency, preload)
            self._warm_again()

    def _retarget(self, latency: str | float | None = None, preload: str | int | None = None) -> None:
        before = self.options
        self.options = replace(
            before,
            latency_s=before.latency_s if latency is None else parse_seconds(latency),
            preload_bytes=before.preload_bytes if preload is None else parse_bytes(preload),
        )
        try:
            self._replan()
        except BaseException:
            self.options = before
            raise

    def _warm_again(self) -> None:
        # An engagement plans anew after every run: warming up would read and keep what no request asked for.
        if self._is_warm and self._keep_bytes is None:
            self._warm_up()

    def give_way(self) -> None:
        """Let go of half the preload buffer, top layers first; keep it where the target could not be met."""
        with self._turns.lock:
            self._check_open()
            self._give_way()

    def _give_way(self) -> None:
        self._is_pressed.clear()
        try:
            # Not warmed up: this may stand before a request, and memory is short.
            self._retarget(preload=(self.options.preload_bytes or 0) // 2)
        except BudgetError:
            return

    @contextmanager
    def engagement(self, preload: str | int) -> Iterator["Session"]:
        """A few executions back to back (STI 3.3): what one has read stays, up to `preload`, bottom
        layers first, and the IO freed thereby loads higher fidelity in the next. Ends as it began.

        Answers that other threads ask for meanwhile belong to it. Raises InputError inside another one.
        """
        keep_bytes = parse_bytes(preload)
        with self._turns.lock:
            self._check_open()
            self._engage(keep_bytes)
        try:
            yield self
        finally:
            with self._turns.lock:
                self._keep_bytes = None
                if not self._closed:
                    self._check_open()
                    self._replan()
                    self._warm_again()

    def _engage(self, keep_bytes: int) -> None:
        if self._keep_bytes is not None:
            raise InputError("this session is engaged already; leave that engagement before the next.")
        if self._memory is not None:
            plan = self._pipeline(self.options.length).plan
            self._memory.reserve(self, plan.memory.weight_bytes + self.engine.arena_bytes + keep_bytes)
        self._keep_bytes = keep_bytes
        self._plans.clear()

    def _check_open(self) -> None:
        """Raise InputError once closed. In a forked child, start a memory watch of its own."""
        if self._closed:
            raise InputError("this session is closed; open the model again.")
        if self._process != os.getpid():
            if self._pressure is not None:
                self._pressure.close()
            self._watch_pressure()
            self._process = os.getpid()

    def _watch_pressure(self) -> None:
        self._is_pressed = threading.Event()
        self._pressure = PressureWatch(self._is_pressed.set) if self.options.yields else None

    def _replan(self) -> None:
        plan, runs = self._planned()
        if self._memory is not None:
            self._memory.reserve(self, plan.memory.weight_bytes + self.engine.arena_bytes)
        self._lanes.drain()
        before = self._plans.clear()  # after an interrupt none counts on what is let go of
        try:
            self._preload.fill(self.store, runs)
        except StoreError:
            self._plans.clear(before)
            raise
        self._ring = Ring()  # the window may be smaller than the one before
        key = PlanKey(self._planner.bucket(self.options.length), self.options.latency_s)
        self._plans.clear({key: self._bind(plan)})

    def _planned(self) -> tuple[Plan, tuple[Run, ...]]:
        """The plan for inputs of `options.length`, and what the preload buffer holds."""
        if self._fixed is not None:
            return self._fixed, self._fixed.preload_runs
        plan, held = self._planner.resident(self.options, arena_bytes=self.engine.arena_bytes)
        return plan, runs_of(held)

    def _replan_held(self) -> None:
        """After a run of an engagement: the next plan counts on what was kept."""
        self._lanes.drain()
        self._plans.clear()

    def _place_preload(self) -> None:
        for run in self._preload.runs:
            self.engine.encoder.place(run.layer, run.part, run.first, run.count, self._preload.address(run))

    def _pipeline(self, n_tokens: int, latency_s: float | None = None) -> Pipeline:
        target_s = self.options.latency_s if latency_s is None else latency_s
        return self._plans.get(self._planner.bucket(n_tokens), target_s)

    def _explained(self, n_tokens: int, target_s: float) -> Plan:
        length = self._planner.bucket(n_tokens)
        return self._plans.explained(self._pipeline(n_tokens, target_s), length, target_s)

    def _make(self, key: PlanKey) -> Pipeline:
        options = replace(self.options, latency_s=key.latency_s)
        plan = self._fixed or self._planner.plan(
            options, key.length, held=self._held(), arena_bytes=self.engine.arena_bytes, slowdown=key.slowdown
        )
        return self._bind(plan)

    def _bind(self, plan: Plan) -> Pipeline:
        pipeline = Pipeline(
            plan,
            self.store,
            self.engine.encoder,
            self._ring,
            self._held(),
            io_slowdown=lambda: self.io_slowdown,
            keep=None if self._keep_bytes is None else self._keep,
        )
        self._lanes.drain()
        self._ring.fit(pipeline.ring_bytes)
        self._place_preload()
        return pipeline

    def _keep(self, run: Run, payload: np.ndarray) -> None:
        if self._keep_bytes is not None and self._preload.n_bytes + payload.nbytes <= self._keep_bytes:
            self._preload.keep(run, payload)

    def _held(self) -> np.ndarray:
        return self._preload.planes(self._planner.importance.shape)

    def _forecast(
        self, pipeline: Pipeline, n_tokens: int, percentile: Percentile
    ) -> tuple[float, tuple[Span, ...]]:
        costs = cost_table(self.profile, min(n_tokens, self.profile.lengths[-1]), percentile)
        spans = simulate(pipeline.program, costs, {"tokens": n_tokens})
        return costs.tokenise_s + latency(spans), spans

    def _reply(
        self,
        answer: np.ndarray,
        times_s: tuple[float, float, float],
        n_tokens: int,
        pipeline: Pipeline,
        outcome: Outcome,
    ) -> Reply:
        seconds, waited_s, target_s = times_s
        plan = pipeline.plan
        labels = self.store.spec.head.labels
        scores = None if labels is None else softmax(answer)
        best = None if scores is None else int(np.argmax(scores))
        predicted_s, predicted = self._forecast(pipeline, n_tokens, "median")
        expected = self._planner.expected(plan, outcome.bits, self.options.plan.errors)
        return Reply(
            label=None if labels is None or best is None else labels[best],
            score=None if scores is None or best is None else scores[best],
            scores=scores,
            logits=None if labels is None else answer,
            vector=answer if labels is None else None,
            seconds=seconds,
            waited_s=waited_s,
            target_s=target_s,
            n_tokens=n_tokens,
            submodel=(plan.n, plan.width),
            cut=plan.cut,
            expected_accuracy=expected,
            accuracy_interval=self._planner.interval(expected),
            bits=outcome.bits,
            planned_bits=plan.bits,
            predicted_s=predicted_s,
            resident_weight_bytes=self.weight_bytes,
            arena_bytes=self.engine.arena_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            read_bytes=outcome.read_bytes,
            spans=outcome.spans,
            predicted_spans=predicted,
            program=pipeline.program,
            within_reach=self._plans.is_within_reach(pipeline, self._planner.bucket(n_tokens), target_s),
        )
