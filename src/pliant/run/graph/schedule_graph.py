"""Schedule a graph: enumerate forms, measure the new ones, choose, apply.

Choosing and applying are pure. Measuring is done here, with the same kernels that run later.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, final

import numpy as np

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.kernel_addresses import load_kernels, lowering_version
from pliant.compiler.layout.apply_schedule import apply_schedule
from pliant.compiler.layout.choose_layouts import LayoutMethod, LayoutSchedule, choose_schedule
from pliant.compiler.layout.layout_forms import MeasurementKeys, build_problem, measurement_keys, with_times
from pliant.compiler.layout.layout_problem import LayoutProblem
from pliant.compiler.layout.row_gaps import insert_gaps
from pliant.compiler.layout.window_forms import LOOPS
from pliant.compiler.passes.fold_weights import FoldedWeightCache, fold_weights
from pliant.compiler.passes.passes import FUSING, simplify
from pliant.compiler.rewrite.execution_order import lower_peak
from pliant.compiler.rewrite.origin import with_origins
from pliant.ir.graph import Graph
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.kernels.version import generator_version
from pliant.profile.form_costs import CostFile, FormRun, cost_file, measure
from pliant.run.graph.array_stage import ExecutableStage, open_image
from pliant.system import cpu_model

ScheduleKind = Literal["static", "none", "paper", "exact"]
"""`static` puts channels last around convolutions, adds gaps between rows that would map to the same cache
sets, and measures nothing; the others are of `LayoutMethod`. `paper` and `exact` add such gaps where they
chose none.
"""

_INDEXING = ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")
_OWN_LAYOUTS = ("channels_last",)
_IMPORTED_S = time.time()


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """The choices of a schedule and its predicted times.

    `edges` is the number of tensors between operators, `candidates` of all their layouts, `choosable` of the
    edges with at least three layouts, `reorders` of inserted reorders, `transposes` of those left, the
    model's and these. Seconds are sums of measured forms: of this schedule, and of default layouts; 0 for
    `none`.
    """

    kind: ScheduleKind
    edges: int
    candidates: int
    choosable: int
    sequences: int
    conflicts: int
    turned: int
    reorders: int
    transposes: int
    predicted_s: float
    default_s: float
    planning_s: float
    measured: int

    @property
    def gain(self) -> float:
        """The predicted saving, as a fraction of the time with default layouts."""
        return 1.0 - self.predicted_s / self.default_s if self.default_s else 0.0


@dataclass(frozen=True, slots=True)
class ScheduledGraph:
    """A graph to compile, and the report of its schedule; None if scheduled by fixed rules."""

    graph: Graph
    report: ScheduleReport | None = None


@dataclass(frozen=True, slots=True)
class OperatorLayoutTimes:
    """Processor seconds of all `n` operators `op`: default layouts, chosen ones, and plain loops.

    `loops_s` is the time of loops in order i-j-k, `reordered_s` of the fastest order of plain loops; an
    operator without a choice of loops counts with its default time. `has_loops`: at least one operator has
    such a choice.
    """

    op: str
    n: int
    default_s: float
    chosen_s: float
    loops_s: float
    reordered_s: float
    has_loops: bool


@final
class GraphScheduler:
    """Schedules graphs for the threads of a pool; times are kept in `costs` (see `cost_file_of`).

    `code` is a pass applied to each graph between simplifying and scheduling.
    """

    def __init__(
        self,
        kind: ScheduleKind,
        pool: ThreadPool,
        library: Library,
        costs: CostFile | None = None,
        seed: int = 0,
        code: Callable[[Graph], Graph] = lambda graph: graph,
    ) -> None:
        self.kind, self._code, self._folded = kind, code, FoldedWeightCache()
        self._pool, self._library, self._seed = pool, library, seed
        self._costs = costs or cost_file_of(library, pool.n_threads)

    def schedule(self, graph: Graph, without: Collection[str] = ()) -> ScheduledGraph:
        """`graph` simplified, except for the passes in `without`, and scheduled."""
        if self.kind == "static":
            done = insert_gaps(self._code(simplify(fold_weights(graph, self._folded), without)))
            return ScheduledGraph(with_origins(lower_peak(done), graph))
        started, source = time.perf_counter(), graph
        graph = self._code(simplify(fold_weights(graph, self._folded), {*without, *_OWN_LAYOUTS}))
        problem = build_problem(graph)
        measured = 0
        if self.kind != "none":
            wanted = measurement_keys(graph, problem)
            table, measured = self._table(problem, wanted)
            problem = with_times(problem, wanted, table)
        schedule = choose_schedule(problem, self.kind, self._seed)
        applied = apply_schedule(graph, schedule.layouts, schedule.forms)
        done = simplify(applied.graph, {*without, *(name for name in FUSING if name != "maps")})
        done = lower_peak(done if self.kind == "none" else insert_gaps(done))
        report = _report(
            self.kind, schedule, problem, done, applied.n_reorders, started, measured, self._pool.n_threads
        )
        return ScheduledGraph(with_origins(done, source), report)

    def make_problem(self, graph: Graph) -> LayoutProblem:
        """The layout problem of a simplified graph, with every time measured."""
        problem = build_problem(graph)
        wanted = measurement_keys(graph, problem)
        return with_times(problem, wanted, self._table(problem, wanted)[0])

    def time_operators(self, graph: Graph) -> list[OperatorLayoutTimes]:
        """The time of a simplified graph by operator: with plain loops, default layouts and chosen
        layouts.
        """
        problem = build_problem(graph)
        wanted = measurement_keys(graph, problem, all_loops=True)
        table, _ = self._table(problem, wanted)
        ready = with_times(problem, wanted, table)
        schedule = choose_schedule(ready, "exact", self._seed)
        found: dict[str, OperatorLayoutTimes] = {}
        for node, every, operator, form in zip(
            graph.nodes, problem.operators, ready.operators, schedule.forms, strict=True
        ):
            default_s = table[wanted.forms[operator.name, 0]]
            plain = {
                form.variant: table[wanted.forms[operator.name, i]]
                for i, form in enumerate(every.forms)
                if form.variant in LOOPS
            }
            row = found.get(node.op, OperatorLayoutTimes(node.op, 0, 0.0, 0.0, 0.0, 0.0, False))
            found[node.op] = OperatorLayoutTimes(
                node.op,
                row.n + 1,
                row.default_s + default_s,
                row.chosen_s + ready.form_s(operator, form, schedule.layouts),
                row.loops_s + plain.get("ijk", default_s),
                row.reordered_s + min(plain.values(), default=default_s),
                row.has_loops or bool(plain),
            )
        return list(found.values())

    def _table(self, problem: LayoutProblem, wanted: MeasurementKeys) -> tuple[dict[str, float], int]:
        """All wanted times, stored or measured now, and the number measured, operator by operator.

        Times are CPU seconds of one thread that runs all work units, divided as for all threads: on a busy
        machine no other time is stable enough.
        """
        table = self._costs.load()
        groups: list[list[str]] = [
            [wanted.forms[o.name, i] for i in range(len(o.forms)) if (o.name, i) in wanted.forms]
            for o in problem.operators
        ]
        groups += [[key] for key in wanted.reorders.values()]
        missing = [key for key in wanted.samples if key not in table]
        if not missing:
            return table, 0
        images = {key: make_image(wanted.samples[key], self._target) for key in missing}
        load_kernels(
            {name: k for image in images.values() for name, k in image_kernels(image).items()}, self._library
        )
        with ThreadPool(1, self._library) as pool:
            for group in groups:
                # All forms of an operator are measured together, so that their ratios do not drift.
                if any(key not in table for key in group):
                    runs = {
                        key: self._opened(wanted.samples[key], images.get(key), pool)
                        for key in dict.fromkeys(group)
                    }
                    table |= measure(runs, time.thread_time, group[0])
        self._costs.add({key: table[key] for key in wanted.samples})
        return table, len(missing)

    @property
    def _target(self) -> Target:
        return Target(self._library.isa, self._pool.n_threads)

    def _opened(self, sample: Graph, image: Image | None, pool: ThreadPool) -> FormRun:
        image = image or make_image(sample, self._target)
        if not image.calls:
            return _nothing
        stage = open_image(image, pool, self._library)
        rng = np.random.default_rng(0)
        # Divisors must not be 0, and indices must not be 1 in a dimension of length 1.
        indices = {node.inputs[1] for node in sample.nodes if node.op in _INDEXING}
        feeds = {
            x: (
                rng.standard_normal(t.shape)
                if t.numpy.kind == "f"
                else np.full(t.shape, 0 if x in indices else 1)
            ).astype(t.numpy)
            for x, t in stage.program.inputs.items()
        }
        return partial(_again, stage, feeds, stage.run(feeds))


def _again(stage: ExecutableStage, *held: object) -> None:
    stage.repeat()


def _nothing() -> None:
    """The work of a form that only aliases other tensors: none."""


def _report(
    kind: LayoutMethod,
    schedule: LayoutSchedule,
    problem: LayoutProblem,
    done: Graph,
    n_reorders: int,
    started: float,
    measured: int,
    n_threads: int,
) -> ScheduleReport:
    default = problem.default
    return ScheduleReport(
        kind=kind,
        edges=schedule.n_edges,
        candidates=schedule.n_candidates,
        choosable=schedule.n_choosable,
        sequences=schedule.n_sequences,
        conflicts=schedule.n_conflicts,
        turned=sum(schedule.layouts[e] != default[e] for e in problem.edges),
        reorders=n_reorders,
        transposes=sum(node.op == "Transpose" for node in done.nodes),
        predicted_s=schedule.seconds / n_threads,
        default_s=schedule.default_s / n_threads,
        planning_s=time.perf_counter() - started,
        measured=measured,
    )


@cache
def cost_file_of(library: Library, n_threads: int) -> CostFile:
    """The file with the times of these kernels on this CPU; another compiler version or kernel source gets a
    new file.

    A time is looked up by the whole text of the measured program, so that a changed program is measured anew.
    """
    versions = (library.isa, library.compiler, generator_version(), lowering_version())
    version = "\n".join(map(str, versions))
    if None in versions:
        version += f"\n{_IMPORTED_S}"  # source changed while running: valid in this process only
    return cost_file(library.cache, cpu_model(), n_threads, version)
