"""Run the program of a session on arrays, for feeds of one size."""

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import CallEntry
from pliant.ir.cost import Span
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.arena import Arena
from pliant.run.execute_inline import execute_inline, inline_spans
from pliant.run.graph.array_stage import AllTensors, Arrays, ArrayStage, ExecutableStage, Tensors
from pliant.run.session.ports import Feeds
from pliant.run.weight_sizes import NO_WEIGHTS, WeightSizes

if TYPE_CHECKING:
    from pliant.run.graph.schedule_graph import ScheduleReport
    from pliant.run.graph.symbolic_forms import SizedStage
    from pliant.run.session.call_profile import Profile, TimedRun

LANE, GRAPH = "cpu", "graph"
_ONE_STEP = Program((Segment((Step(LANE, Compute(GRAPH, rows=1)),)),), (), ())


@final
class GraphRunner:
    """Runs a program whose steps are stages on arrays. The owner serialises runs.

    Every step is a `Compute` of the lane `cpu` whose kernel names one of `stages`: an executable
    (`ExecutableStage`) or another `ArrayStage`. Tensors pass between steps by name: a run starts with the
    feeds, and each step adds the tensors that its stage makes. A tensor is freed after the last step that
    reads it; the tensors named by `outputs` are the answer. A stage may make a tensor whose shape was not
    known before, and the stage that reads it then finds its kernels.

    An output with a data-dependent shape is a `Port` with open dimensions.

    `schedule` reports how layouts were chosen, None if by fixed rules or unknown; `measured_s` is the median
    time of a run in the last profile. `sizes` are the predicted bytes of its weights.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[str, ArrayStage],
        inputs: Mapping[str, TensorType],
        outputs: Mapping[str, TensorType | Port],
        pool: ThreadPool,
        schedule: "ScheduleReport | None" = None,
        sizes: WeightSizes = NO_WEIGHTS,
    ) -> None:
        self.program, self.stages = program, dict(stages)
        self.inputs, self.outputs = inputs, outputs
        self.schedule, self.sizes = schedule, sizes
        self.measured_s: float | None = None
        self._pool = pool
        self._readings_s: Sequence[float] = ()
        steps = [self.stages[name] for name in _named(program)]
        self._run = _Run(steps, outputs.keys())
        is_alone = len(steps) == 1 and set(steps[0].outputs) == set(outputs)
        self._only = steps[0] if is_alone else None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of the latest run; there must have been one."""
        return inline_spans(self.program, self._readings_s)

    @property
    def weights(self) -> Arrays:
        """The weights of all stages, by name."""
        return {x: a for stage in self.stages.values() for x, a in stage.weights.items()}

    @property
    def arena_bytes(self) -> int:
        """The arena bytes that the stages need, one after another in one arena."""
        return max((stage.arena_bytes for stage in self.stages.values()), default=0)

    @property
    def scratch_bytes(self) -> int:
        """The scratch bytes that the stages need on each thread."""
        return max((stage.scratch_bytes for stage in self.stages.values()), default=0)

    @property
    def rows(self) -> list[CallEntry]:
        """The kernel calls of all steps, in order."""
        return [row for stage in self._run.stages for row in stage.rows]

    def walk(self, feeds: AllTensors, out: Feeds | None) -> Tensors:
        """The outputs of a run on feeds that were checked: they have the types and shapes of `inputs`.

        Those of `out` are written into the arrays given there. Raises InputError.
        """
        if self._only is not None:  # overhead matters in a short run of one step
            start_s = perf_counter()
            made = self._only.walk(feeds, out)
            self._readings_s = (start_s, perf_counter())
            return made
        return self._execute(self._run.compute, feeds, out)

    def walk_timed(self, feeds: AllTensors) -> tuple[Tensors, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time from the start of the first step to the end of each kernel call."""
        self._run.ends_s = []
        made = self._execute(self._run.compute_timed, feeds, None)
        start_s = self.spans[0].start_s if self.spans else 0.0
        timed = zip(self.spans, self._run.ends_s, strict=True)
        return made, np.array([0.0, *chain(*(s.start_s - start_s + ends_s[1:] for s, ends_s in timed))])

    def copy_for(self, pool: ThreadPool, arena: Arena) -> "GraphRunner":
        """A copy of the program in another arena, for a pool that runs it concurrently."""
        stages = {name: stage.copy_for(pool, arena) for name, stage in self.stages.items()}
        return GraphRunner(self.program, stages, self.inputs, self.outputs, pool)

    def profile(self, feeds: AllTensors, runs: int) -> "Profile":
        """The time of each step, over `runs` runs after one warm-up run; feeds as for `walk`."""
        self.walk(feeds, None)
        found = self._profiled([self._timed(feeds)[1] for _ in range(runs)])
        self.measured_s = found.median_s
        return found

    def traced(self, feeds: AllTensors) -> tuple[Tensors, "Profile"]:
        """As `walk`, with the profile of this run."""
        made, run = self._timed(feeds)
        return made, self._profiled([run])

    def _timed(self, feeds: AllTensors) -> tuple[Tensors, "TimedRun"]:
        from pliant.run.session.call_profile import TimedRun  # imports tables, which runs do not need

        self._run.ends_s = []
        made = self._execute(self._run.compute_timed, feeds, None)
        return made, TimedRun(self.spans, self._run.ends_s)

    def _profiled(self, runs: Sequence["TimedRun"]) -> "Profile":
        from pliant.run.session.call_profile import profile_of

        rows = [stage.rows for stage in self._run.stages]
        return profile_of(self.program, rows, runs, self._pool.n_threads)

    def _execute(
        self, compute: Callable[[int, Compute], None], feeds: AllTensors, out: Feeds | None
    ) -> Tensors:
        run = self._run
        run.tensors, run.out = feeds, out
        try:
            self._readings_s = execute_inline(self.program, compute)
            return run.answer
        finally:
            run.tensors, run.out, run.answer = {}, None, {}


@final
class _Run:
    """The tensors of the current run. It holds no reference to the runner, so that a dropped runner is freed
    at once.
    """

    def __init__(self, stages: Sequence[ArrayStage], outputs: KeysView[str]) -> None:
        self.stages, self._outputs = stages, outputs
        self.tensors: AllTensors = {}
        self.out: Feeds | None = None
        self.answer: Tensors = {}
        self.ends_s: list[Float64[np.ndarray, " ends"]] = []
        self._last, self._last_read = len(stages) - 1, list(_last_read(stages, outputs))

    def compute(self, step: int, work: Compute) -> None:
        self._add(step, self.stages[step].walk(self.tensors, self.out))

    def compute_timed(self, step: int, work: Compute) -> None:
        made, ends_s = self.stages[step].walk_timed(self.tensors)
        self.ends_s.append(ends_s)
        self._add(step, made)

    def _add(self, step: int, made: Tensors) -> None:
        if step == self._last and made.keys() == self._outputs:
            self.answer = made
            return
        tensors = {**self.tensors, **made}
        for x in self._last_read[step]:
            del tensors[x]
        self.tensors = tensors
        if step == self._last:
            self.answer = {y: tensors[y] for y in self._outputs}


def one_stage_runner(
    stage: "ExecutableStage | SizedStage",
    pool: ThreadPool,
    schedule: "ScheduleReport | None" = None,
    sizes: WeightSizes = NO_WEIGHTS,
) -> GraphRunner:
    """The program of one executable: one step."""
    return GraphRunner(
        _ONE_STEP, {GRAPH: stage}, stage.input_types, stage.output_types, pool, schedule, sizes
    )


def _named(program: Program) -> Iterator[str]:
    for step in program.steps:
        assert isinstance(step.work, Compute), step
        assert step.lane == LANE, step
        yield step.work.kernel


def _last_read(stages: Sequence[ArrayStage], outputs: KeysView[str]) -> Iterator[tuple[str, ...]]:
    """For each step, the tensors to free after it: no later step reads them, and they are not outputs."""
    for i, stage in enumerate(stages[:-1]):
        wanted = {x for later in stages[i + 1 :] for x in later.inputs} | set(outputs)
        yield tuple(x for x in dict.fromkeys((*stage.inputs, *stage.outputs)) if x not in wanted)
    yield ()
