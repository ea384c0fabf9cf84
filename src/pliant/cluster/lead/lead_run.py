"""Lead one inference: announce each segment ahead, and keep its input until its output is complete.

`RunPlanner` chooses the plan, one segment boundary ahead and off the critical path.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from threading import Lock
from typing import Protocol, final

import msgspec
import numpy as np

from pliant.cluster.control.messages import Note, SegmentRequest, StopRequest
from pliant.cluster.lead.join_spans import join_programs, join_spans
from pliant.cluster.lead.primary import Primary
from pliant.cluster.lead.run_log import Fault
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.member.run_executor import RunExecutor, SegmentTask
from pliant.cluster.watch.fault_attribution import Accusation, Verdict, fault_of
from pliant.errors import ClusterError, InputError, LaneError, NonFiniteError
from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import EncoderSource


class Pause(Enum):
    """Where a run stops for `begin` to choose its continuation: before the next segment, or the one after."""

    NOW = auto()
    NEXT = auto()


class RunPlanner(Protocol):
    """Chooses plans. Called on the leading thread, so long operations must run on another."""

    def begin(
        self, source: EncoderSource, tokens: int, without: Collection[str], number: int = 0
    ) -> ReadyPlan:
        """Return a plan that all its members hold ready, of all usable members except `without`.

        It is for segments from `number` on; no segment runs during the call.
        """

    def next_plan(
        self, number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]
    ) -> ReadyPlan | Pause:
        """Return the plan of segment `number`, which is not announced yet, after one by plan `current`.

        `notes` are of the segment before that, by plan `last`. Returns a pause if the plan cannot be held
        beside the current one, or if the current one cannot continue.
        """

    def predicted_s(self, held: ReadyPlan) -> float | None:
        """Return the seconds of one layer by this plan, if known."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run: the program of the committed segments, and the time of each step.

    `tasks` and `plans` are those of the segments, `spans` count from the start of the run. An exchange lasts
    from its hand-over, or the arrival of the previous one, until its arrival. A step whose times are missing,
    because its member failed or reported too late, counts as skipped. Before it, the plan was made ready in
    `begin_s`.
    """

    answers: tuple[np.ndarray, ...]
    seconds: float
    plans: tuple[ReadyPlan, ...]
    tasks: tuple[SegmentTask, ...]
    program: Program
    spans: tuple[Span, ...]
    faults: tuple[Fault, ...]
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _AnnouncedSegment:
    held: ReadyPlan
    task: SegmentTask


@dataclass(slots=True)
class _RunState:
    """The committed state, all before segment `number` with input `x`, and the announced segments.

    `begin` returns a plan for the remaining segments without some members. `suspects` sent numbers that are
    not finite: they are punished if the run succeeds without the members `without`.
    """

    held: ReadyPlan
    inputs: Sequence[PreparedInput]
    begin: Callable[[int, Collection[str]], ReadyPlan]
    number: int = 0
    x: np.ndarray | None = None
    epoch: int = -1
    announced: dict[int, _AnnouncedSegment] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    suspects: list[Verdict] = field(default_factory=list)
    without: set[str] = field(default_factory=set)
    began_s: float = 0.0

    @property
    def lengths(self) -> tuple[int, ...]:
        """The rows of each of several inputs, and of the end that belongs to none; empty for one input."""
        lengths = tuple(one.rows for one in self.inputs)
        rest = self.held.partition.tokens - sum(lengths)
        return () if len(lengths) == 1 else (*lengths, rest) if rest else lengths


@final
class RunLeader:
    """Leads runs, one at a time; thread-safe.

    `executor` must pass its notes to `note`. `n_repeats` limits how often one run is resumed.
    """

    def __init__(
        self, primary: Primary, executor: RunExecutor, planner: RunPlanner, *, n_repeats: int = 100
    ) -> None:
        self._primary, self._executor, self._planner = primary, executor, planner
        self._n_repeats = n_repeats
        self._run_lock = Lock()
        self._notes: dict[str, Note] = {}

    def note(self, peer: str, note: Note) -> None:
        """Store the note that `peer` sent with its last exchange."""
        self._notes[peer] = note
        self._primary.monitor.set_memory(peer, note.free_bytes)

    def run(
        self,
        source: EncoderSource,
        inputs: Sequence[PreparedInput],
        tokens: int,
        *,
        is_alone: bool = False,
    ) -> RunRecord:
        """Return the model's answers to inputs that run together, with retries after failures of members.

        The plan is for `tokens` rows, at least those of all inputs. `is_alone` excludes all workers; several
        inputs exclude those of a release that takes one. Raises a failure of this member itself, and
        InputError if the primary alone, too, computes numbers that are not finite.
        """
        with self._run_lock, self._primary.log.run():

            def begin(number: int, without: Collection[str]) -> ReadyPlan:
                others = [member.name for member in self._primary.monitor.members] if is_alone else []
                unable = self._unable(inputs)
                return self._planner.begin(source, tokens, {*others, *unable, *without}, number)

            asked_s = self._primary.clock()
            run = _RunState(begin(0, ()), inputs, begin)
            self._primary.log.follow(run.held)
            run.held.runner.begin(inputs)
            start_s = self._primary.clock()
            try:
                self._executor.run(
                    self._attempt(run), lambda: self._advance(run), lambda error: self._repeat(run, error)
                )
            except BaseException:
                self._stop(run)
                raise
            answers = run.held.runner.answers()
            seconds = self._primary.clock() - start_s
            return replace(self._record_run(run, answers, start_s, seconds), begin_s=start_s - asked_s)

    def _attempt(self, run: _RunState) -> SegmentTask:
        """Announce the remaining segments after the last commit, in a new epoch; return the next turn."""
        run.epoch, held, number = self._primary.next_epoch(), run.held, run.number
        run.began_s = self._primary.clock()
        run.announced = {n: a for n, a in run.announced.items() if n < number}
        self._notes.clear()
        others = self._others(held)
        run.members.update(others)
        self._primary.watch(run.epoch, others)
        if run.x is not None:
            held.runner.state(number - 1)[...] = run.x
        self._announce(run, number, held, others if number else ())
        self._announce(run, number + 1, held, ())
        return run.announced[number].task

    def _advance(self, run: _RunState) -> SegmentTask | None:
        """At a boundary: commit the completed segment, and announce the segment after the next one."""
        before = run.announced[run.number]
        if run.number == before.held.n_segments - 1:
            return None
        x = before.held.runner.state(run.number).copy()
        if not np.isfinite(x).all():  # or its receivers would be blamed
            return self._doubt_input(run, before.held)
        run.number, run.x = run.number + 1, x
        run.began_s = self._primary.clock()
        if run.number not in run.announced:
            return self._resume(run)
        coming = run.announced[run.number]
        if run.number < before.held.n_segments - 1 and self._primary.has_epoch_failed:
            return self._repeat(run, ClusterError("a member failed, though not here."))
        if coming.held is not before.held:
            coming.held.runner.begin(run.inputs)
            coming.held.runner.state(run.number - 1)[...] = run.x
            run.held = coming.held
            self._primary.log.follow(run.held)
        if run.number + 1 < coming.held.n_segments:
            notes = {**self._notes, self._primary.name: self._executor.note()}
            if run.lengths:
                notes = {name: _without_attention(note) for name, note in notes.items()}
            held = self._planner.next_plan(run.number + 1, coming.held, before.held, notes)
            if held is Pause.NEXT:
                return coming.task
            if held is Pause.NOW or not self._unable(run.inputs).isdisjoint(held.partition.participants):
                return self._resume(run)
            lacking = held.members_without_input(coming.held.partition)
            if held is not coming.held:
                run.members.update(lacking)
                self._primary.watch(run.epoch, {*self._others(coming.held), *lacking})
            self._announce(run, run.number + 1, held, lacking)
        return coming.task

    def _doubt_input(self, run: _RunState, held: ReadyPlan) -> SegmentTask:
        """Repeat a segment whose output is not finite, or raise InputError if no worker took part."""
        if run.number == 0:
            raise InputError("the input's numbers are too large: their embedding is not finite.")
        if not self._others(held):
            raise InputError(
                f"the input's numbers are too large or too small for layer {run.number - 1}: its output is "
                "not finite."
            )
        name = self._primary.name
        return self._repeat(run, NonFiniteError(f"{name} computed numbers that are not finite.", name))

    def _resume(self, run: _RunState) -> SegmentTask:
        """Return the next segment by another plan, after all work of the current plan has stopped."""
        self._stop(run)
        return self._replan(run)

    def _repeat(self, run: _RunState, error: LaneError | ClusterError) -> SegmentTask:
        """Repeat the failed segment without the members at fault; raises `error` if there are none."""
        if len(run.faults) >= self._n_repeats:
            raise error
        without = self._judge(run, error)
        self._leave_out(run, without, error)
        noticed_s = self._primary.clock()
        began_s = run.began_s
        task = self._replan(run)
        fault = Fault(run.number, without, noticed_s - began_s, run.began_s - noticed_s)
        run.faults.append(fault)
        self._primary.log.add(fault)
        return task

    def _leave_out(self, run: _RunState, found: Collection[Verdict], error: LaneError | ClusterError) -> None:
        """After numbers that are not finite, continue without their senders, the second time alone.

        If the primary alone computes such numbers, too, the input is at fault, and no member is punished.
        """
        suspects, cause = [v for v in found if v.is_non_finite], fault_of(error)
        is_own = cause.is_non_finite and cause.peer == self._primary.name
        if is_own or (suspects and run.suspects):
            run.without.update(member.name for member in self._primary.monitor.members)
        run.without.update(v.member for v in suspects)
        run.suspects += suspects

    def _replan(self, run: _RunState) -> SegmentTask:
        run.held = run.begin(run.number, run.without)
        self._primary.log.follow(run.held)
        run.held.runner.begin(run.inputs)
        return self._attempt(run)

    def _announce(self, run: _RunState, number: int, held: ReadyPlan, lacking: Collection[str]) -> None:
        if number >= held.n_segments or number in run.announced:
            return
        timeout_s = self._primary.patience.exchange_s(self._planner.predicted_s(held))
        entrants = frozenset(lacking)
        task = held.task(self._primary.name, run.epoch, number, entrants, timeout_s, run.lengths)
        run.announced[number] = _AnnouncedSegment(held, task)
        if number < held.n_segments - 1:
            named = tuple(sorted(entrants))
            go = SegmentRequest(run.epoch, number, held.number, named, timeout_s, run.lengths)
            for name in self._others(held):
                self._primary.send(name, go)

    def _judge(self, run: _RunState, error: LaneError | ClusterError) -> tuple[Verdict, ...]:
        """Return the members to exclude from the repeat; raises `error` if only this member is at fault."""
        of = fault_of(error)
        cause = error.__cause__ if isinstance(error, LaneError) else error
        if not isinstance(cause, ClusterError):
            raise error
        if of.peer is not None:
            accused_by = self._primary.name
            accusation = Accusation(accused_by, of.peer, of.is_misbehaviour, of.reason, of.is_non_finite)
            self._primary.accuse(run.epoch, accusation)
        found = self._primary.collect_verdicts()
        self._stop(run)
        return found

    def _stop(self, run: _RunState) -> None:
        self._primary.comm.drop(run.epoch)  # later messages of the epoch are not needed
        for name in run.members:
            self._primary.send(name, StopRequest(run.epoch))

    def _unable(self, inputs: Sequence[PreparedInput]) -> set[str]:
        """Return the members that cannot run these inputs together: of a release before that takes one."""
        return {m.name for m in self._primary.monitor.members if m.hello.packs_texts < (len(inputs) > 1)}

    def _others(self, held: ReadyPlan) -> tuple[str, ...]:
        return tuple(d for d in held.partition.participants if d != self._primary.name)

    def _record_run(
        self, run: _RunState, answers: tuple[np.ndarray, ...], start_s: float, seconds: float
    ) -> RunRecord:
        ended = set(self._others(run.held))
        for name in ended:
            self._primary.monitor.reset_failures(name)
        for verdict in run.suspects:
            self._primary.exclude(verdict)
        for name in run.members - ended:
            self._primary.send(name, StopRequest(run.epoch))
        committed = [run.announced[n] for n in sorted(run.announced)]
        tasks = tuple(one.task for one in committed)
        plans = tuple(one.held for one in committed)
        said = {self._primary.name: self._executor.take_spans()}
        for epoch in {task.epoch for task in tasks}:
            wanted = ended if epoch == run.epoch else ()
            for name, ran in self._primary.collect_reports(epoch, wanted).items():
                said[name] = (*said.get(name, ()), *ran)
        spans = join_spans(tasks, said, start_s)
        return RunRecord(
            answers, seconds, plans, tasks, join_programs(tasks, plans), spans, tuple(run.faults)
        )


def _without_attention(note: Note) -> Note:
    """Return a note without the stages that took less time than one text of as many rows would."""
    compute_s = {kind: s for kind, s in note.compute_s.items() if not kind.startswith("attend")}
    return msgspec.structs.replace(note, compute_s=compute_s)
