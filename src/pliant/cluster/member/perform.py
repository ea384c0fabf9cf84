"""Perform one member's part of a run: its stages, its exchanges, and a record of their times.

The primary and the workers run this same code; only who says which segment comes next differs.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from threading import Lock
from typing import Protocol, final

import numpy as np

from pliant.cluster.control.messages import Note, Ran, decode_note, encode_note
from pliant.cluster.net.activation_coding import Coding, coded_bytes, decode, encode
from pliant.cluster.net.comm import Comm, Tag
from pliant.errors import PeerMisbehaved
from pliant.ir.program import Compute, Exchange, Load, Program, Segment
from pliant.ir.projection import Projection
from pliant.run.execute import Do, execute
from pliant.run.lanes import Lanes

FREE_S = 0.1
"""How old what a member says of its free memory may be."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights that were read and packed because they were not held yet, and how long that took."""

    n_bytes: int
    seconds: float


class Holder(Protocol):
    """What computes a device's stages and holds its tensors (see `shard`)."""

    @property
    def loaded(self) -> LoadedWeights:
        """What had to be loaded for it."""
        ...

    def compute(self, step: int, work: Compute) -> None:
        """Run one stage."""

    def view(self, work: Exchange) -> np.ndarray:
        """What travels, float32 [rows, columns], as a view of the tensor that may be written."""

    def begin(self, feeds: Mapping[str, np.ndarray]) -> None:
        """The primary's: what the input stage reads."""

    def state(self, layer: int) -> np.ndarray:
        """What enters `layer`, whole, float32 [tokens, hidden]: a view that may be written."""

    def answer(self) -> np.ndarray:
        """The primary's: what the head stage made."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One segment of a run, and what of it is this member's `own`."""

    epoch: int
    number: int
    segment: Segment
    own: Projection
    holder: Holder
    coding: Coding
    patience_s: float


Following = Callable[[], Turn | None]
"""Waits for the next turn; None where the run ends here for this member."""
OnNote = Callable[[str, Note], None]


class _Ended(Exception):  # noqa: N818 - no error: a run that goes on without this member
    """Leaves `execute` at a boundary."""


@final
@dataclass(slots=True)
class Performer:
    """Runs turns on `lanes` for the member `name`; one run at a time.

    `free_bytes` takes half a millisecond, so what it said stands for FREE_S. `on_note` hears what came with
    each message, on the thread that runs.
    """

    name: str
    comm: Comm
    lanes: Lanes
    free_bytes: Callable[[], int]
    on_note: OnNote = lambda peer, note: None
    clock: Callable[[], float] = time.perf_counter
    _turn: Turn | None = None
    _first: int = 0
    _n_steps: int = 0
    _compute_s: dict[str, float] = field(default_factory=dict)
    _arrived: dict[str, tuple[int, float]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _free_bytes: int = 0
    _free_until_s: float = -inf
    _ran: list[Ran] = field(default_factory=list)

    def run(self, first: Turn, following: Following, n_turns: int) -> None:
        """Run `first` and up to `n_turns` - 1 more, asked of `following` at each boundary.

        Raises LaneError when a step fails, once every lane has stopped; its cause is the first failure.
        """
        self._first = self._n_steps = 0
        program = Program((self._begin(first), *[Segment(())] * (n_turns - 1)), (), ())

        def advance(number: int, spans: object) -> Segment:
            turn = following()
            if turn is None:
                raise _Ended
            return self._begin(turn)

        do = Do(compute=self._compute, load=_no_load, exchange=self._exchange)
        try:
            execute(program, do, self.lanes, advance=advance, origin_s=0.0)
        except _Ended:
            return

    @property
    def turn(self) -> Turn | None:
        """The turn that runs, or ran last."""
        return self._turn

    @property
    def epoch(self) -> int | None:
        """The epoch that runs, or ran last; None before the first."""
        return None if self._turn is None else self._turn.epoch

    @property
    def number(self) -> int:
        """The segment that runs, or ran last."""
        return self._current.number

    def note(self) -> Note:
        """What this member says of the segment that runs, or ran last."""
        now_s = self.clock()
        if now_s >= self._free_until_s:
            self._free_bytes = self.free_bytes()
            self._free_until_s, now_s = now_s + FREE_S, self.clock()
        return Note(now_s, self._free_bytes, dict(self._compute_s), dict(self._arrived))

    def take_spans(self) -> tuple[Ran, ...]:
        """Every step that ran since the last call, on this member's clock."""
        with self._lock:
            taken, self._ran = tuple(self._ran), []
        return taken

    def _begin(self, turn: Turn) -> Segment:
        self._first += self._n_steps
        self._n_steps = len(turn.own.numbers)
        self._compute_s, self._arrived = {}, {}
        self._turn = turn
        return turn.own.segment

    def _compute(self, step: int, work: Compute) -> None:
        turn = self._current
        start_s, before = self.clock(), self.lanes.effort()
        try:
            turn.holder.compute(step - self._first, work)
        except BaseException:
            self.comm.drop(turn.epoch)  # what others send for it is of no use
            raise
        rest = self.lanes.dilation.get(self.lanes.own, 1.0) - 1.0
        took_s = self.clock() - start_s + rest * (self.lanes.effort() - before)
        self._compute_s[work.kernel] = self._compute_s.get(work.kernel, 0.0) + took_s
        self._keep(step, start_s, start_s + took_s)

    def _exchange(self, step: int, work: Exchange) -> None:
        turn = self._current
        tag = Tag(turn.epoch, turn.number, turn.own.numbers[step - self._first])
        start_s = self.clock()
        try:
            if work.src == self.name:
                data = encode(turn.holder.view(work), turn.coding)
                self.comm.send(work.dst, tag, data, encode_note(self.note()))
            else:
                arrived_s = self._receive(turn, tag, work)
        except BaseException:
            self.comm.drop(turn.epoch)
            raise
        end_s = self.clock() if work.src == self.name else arrived_s
        self._keep(step, min(start_s, end_s), end_s)

    def _receive(self, turn: Turn, tag: Tag, work: Exchange) -> float:
        """When it was here, which may be before this member had time for it."""
        into = turn.holder.view(work)
        if turn.coding == "fp32" and into.flags.c_contiguous:
            arrival, n_bytes = self.comm.receive(work.src, tag, into, turn.patience_s), into.nbytes
            end_s = self.clock() - arrival.waited_s
        else:
            n_bytes = coded_bytes((into.shape[0], into.shape[1]), turn.coding)
            data = np.empty(n_bytes, np.uint8)
            arrival = self.comm.receive(work.src, tag, data, turn.patience_s)
            end_s = self.clock() - arrival.waited_s
            decode(data, turn.coding, into)
        if not isfinite(into.sum()):
            raise PeerMisbehaved(f"{work.src} sent numbers that are not finite as {work}.", work.src)
        said = decode_note(arrival.note, work.src)
        before, seconds = self._arrived.get(work.src, (0, 0.0))
        self._arrived[work.src] = before + n_bytes, seconds + end_s - said.sent_s
        self.on_note(work.src, said)
        return end_s

    @property
    def _current(self) -> Turn:
        assert self._turn is not None
        return self._turn

    def _keep(self, step: int, start_s: float, end_s: float) -> None:
        turn = self._current
        ran = Ran(turn.epoch, turn.number, turn.own.numbers[step - self._first], start_s, end_s)
        with self._lock:
            self._ran.append(ran)


def _no_load(step: int, work: Load) -> None:
    raise AssertionError(f"a cluster's program loads nothing, but step {step} is {work}")
