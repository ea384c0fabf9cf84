"""Run one member's part of a run: its stages, its exchanges, and a record of their times.

The primary and the workers share this code; they differ only in how the next segment is determined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, final

import numpy as np

from pliant.cluster.control.messages import Note, StepSpan, decode_note, encode_note
from pliant.cluster.net.activation_coding import Coding, coded_bytes, decode, encode
from pliant.cluster.net.comm import Comm, Tag
from pliant.errors import LaneError, NonFiniteError
from pliant.ir.cost import Span
from pliant.ir.program import Compute, Exchange, Program, Segment
from pliant.ir.projection import Projection
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.run.execute import StepFunctions, execute
from pliant.run.lanes import Lanes

FREE_S = 0.1
"""Maximum age of a reported free-memory value, in seconds."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights that were missing, and the time to read and pack them."""

    n_bytes: int
    seconds: float


class StageRunner(Protocol):
    """Computes a device's stages and holds its tensors (see `shard`)."""

    @property
    def loaded(self) -> LoadedWeights:
        """The weights that were loaded for it."""
        ...

    def compute(self, step: int, work: Compute, lengths: tuple[int, ...] = ()) -> None:
        """Run one stage over texts of `lengths` rows, by default one of all rows."""

    def view(self, work: Exchange) -> np.ndarray:
        """The exchanged tensor, float32 [rows, columns], as a writable view."""

    def begin(self, inputs: Sequence[PreparedInput]) -> None:
        """On the primary: set the inputs of a run, one after another in its rows."""

    def state(self, layer: int) -> np.ndarray:
        """The complete input of `layer`, float32 [tokens, hidden], as a writable view."""

    def answers(self) -> tuple[np.ndarray, ...]:
        """On the primary: the output of the head stage for each input."""


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment of a run, and this member's `own` part of it.

    `lengths` are the rows of each of several texts; empty for one text of all rows.
    """

    epoch: int
    number: int
    segment: Segment
    own: Projection
    runner: StageRunner
    coding: Coding
    timeout_s: float
    lengths: tuple[int, ...] = ()


NextTask = Callable[[], SegmentTask | None]
"""Waits for the next task; None when the run ends for this member."""
RetryTask = Callable[[LaneError], SegmentTask]
"""Returns the task that replaces a failed one, or raises."""
OnNote = Callable[[str, Note], None]


@final
@dataclass(slots=True)
class RunExecutor:
    """Runs segment tasks on `lanes` for the member `name`; one run at a time.

    `free_bytes` takes 0.5 ms, so its value is cached for FREE_S. `on_note` is called with the note of each
    received message, on the running thread.
    """

    name: str
    comm: Comm
    lanes: Lanes
    free_bytes: Callable[[], int]
    on_note: OnNote = lambda peer, note: None
    _task: SegmentTask | None = None
    _first: int = 0
    _compute_s: dict[str, float] = field(default_factory=dict)
    _arrived: dict[str, tuple[int, float]] = field(default_factory=dict)
    _n_arrived: dict[str, int] = field(default_factory=dict)
    _free_bytes: int = 0
    _free_until_s: float = -inf
    _spans: list[StepSpan] = field(default_factory=list)

    def run(self, first: SegmentTask, following: NextTask, repeated: RetryTask | None = None) -> None:
        """Run `first`, then the task that `following` returns at each boundary.

        Raises LaneError when a step fails and `repeated` does not replace its task; the cause is the first
        failure.
        """

        def advance(number: int, spans: tuple[Span, ...]) -> Segment | None:
            self._first += len(spans)
            task = following()
            return None if task is None else self._begin(task)

        def repeat(number: int, error: LaneError) -> Segment:
            if repeated is None:
                raise error
            return self._begin(repeated(error))

        self._first = 0
        functions = StepFunctions(self._compute, exchange=self._exchange, on_end=self._record_step)
        program = Program((self._begin(first),), (), ())
        try:
            execute(program, functions, self.lanes, advance=advance, repeat=repeat, origin_s=0.0)
        except BaseException:
            self.comm.drop(self._current.epoch)  # later messages of the epoch are not needed
            raise

    @property
    def task(self) -> SegmentTask | None:
        """The current task, or the last one."""
        return self._task

    @property
    def epoch(self) -> int | None:
        """The current epoch, or the last one; None before the first."""
        return None if self._task is None else self._task.epoch

    @property
    def number(self) -> int:
        """The current segment, or the last one."""
        return self._current.number

    def note(self) -> Note:
        """Return this member's note on the current segment, or the last one."""
        clock = self.lanes.clock
        now_s = clock()
        if now_s >= self._free_until_s:
            self._free_bytes = self.free_bytes()
            self._free_until_s, now_s = now_s + FREE_S, clock()
        arrived, n_arrived = dict(self._arrived), dict(self._n_arrived)
        return Note(now_s, self._free_bytes, dict(self._compute_s), arrived, n_arrived)

    def take_spans(self) -> tuple[StepSpan, ...]:
        """Return every step that ran since the last call, on this member's clock."""
        taken, self._spans = tuple(self._spans), []
        return taken

    def _begin(self, task: SegmentTask) -> Segment:
        self._task = task
        self._compute_s, self._arrived, self._n_arrived = {}, {}, {}
        return task.own.segment

    def _compute(self, step: int, work: Compute) -> None:
        self._current.runner.compute(step - self._first, work, self._current.lengths)

    def _exchange(self, step: int, work: Exchange) -> float | None:
        task = self._current
        tag = Tag(task.epoch, task.number, task.own.numbers[step - self._first])
        if work.dst == self.name:
            return self._receive(task, tag, work)
        data = encode(task.runner.view(work), task.coding)
        self.comm.send(work.dst, tag, data, encode_note(self.note()))
        return None

    def _record_step(self, span: Span) -> None:
        task, at = self._current, span.step - self._first
        work = task.own.segment.steps[at].work
        if isinstance(work, Compute):
            self._compute_s[work.kernel] = self._compute_s.get(work.kernel, 0.0) + span.seconds
        self._spans.append(StepSpan(task.epoch, task.number, task.own.numbers[at], span.start_s, span.end_s))

    def _receive(self, task: SegmentTask, tag: Tag, work: Exchange) -> float:
        """Receive a tensor and return its arrival time, which may precede this call."""
        into = task.runner.view(work)
        if task.coding == "fp32" and into.flags.c_contiguous:
            arrival, n_bytes = self.comm.receive(work.src, tag, into, task.timeout_s), into.nbytes
            end_s = self.lanes.clock() - arrival.waited_s
        else:
            n_bytes = coded_bytes((into.shape[0], into.shape[1]), task.coding)
            data = np.empty(n_bytes, np.uint8)
            arrival = self.comm.receive(work.src, tag, data, task.timeout_s)
            end_s = self.lanes.clock() - arrival.waited_s
            decode(data, task.coding, into)
        if not np.isfinite(into).all():
            raise NonFiniteError(f"{work.src} sent numbers that are not finite as {work}.", work.src)
        said = decode_note(arrival.note, work.src)
        before, seconds = self._arrived.get(work.src, (0, 0.0))
        self._arrived[work.src] = before + n_bytes, seconds + end_s - said.sent_s
        self._n_arrived[work.src] = self._n_arrived.get(work.src, 0) + 1
        self.on_note(work.src, said)
        return end_s

    @property
    def _current(self) -> SegmentTask:
        assert self._task is not None
        return self._task
