"""A plan: what will run, when, in how much memory, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import Budget, Span
from pliant.ir.program import FULL, Run
from pliant.plan.submodel.accuracy import AccuracyInterval
from pliant.plan.submodel.io_plan import LayerLoad
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.slowdown import Slowdown
from pliant.plan.submodel.submodel import Cut
from pliant.quantities import format_seconds

Grid = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Predicted bytes: weights kept between runs, weights of the layers in flight, intermediate tensors.

    `fixed_bytes` are what every plan of a model needs: codebooks, norms, embeddings and the head.
    """

    preload_bytes: int
    working_bytes: int
    arena_bytes: int
    fixed_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.preload_bytes + self.working_bytes

    @property
    def total_bytes(self) -> int:
        """What a session of this plan adds to its process."""
        return self.weight_bytes + self.arena_bytes + self.fixed_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """One submodel with its bits, loads and predicted times; it prints as a page that a person reads.

    `layers` are the model's own layer numbers, in order; each runs its leading `width` slices.
    `bits[k][s]` is what shard s of the k-th layer is planned to run with, `held[k][s]` how many of
    its planes (32: full fidelity) are in memory before the run. `aib_start_s` are the accumulated IO
    budgets with the preload bonus before any debit, `aib_s` what is left of them.
    `window` layers' loads may be in memory beside the layer that runs; `latest_start_s[k]` is when
    layer k starts at the latest without its missing refinements, None to wait for all of them;
    a refinement is not begun after `latest_refinement_s[k][i]`, as base planes of later layers would
    then be late.
    `spans` are the predicted steps of `lower_plan(plan)` at median costs, from the end of tokenising;
    `latency_s` is end to end, `latency_p95_s` an upper bound at the costs that were planned with.
    `expected_accuracy` is a fraction with its 95 % interval, None where nothing was measured. `slowdown` is
    what the costs of the profile were multiplied by. `cut` tells why layers or slices may be left out;
    "untrained" happens with `PlanOptions.depths` "any" only.
    """

    name: str
    budget: Budget
    shape: StoreShape
    layers: tuple[int, ...]
    width: int
    bits: Grid
    held: Grid
    loads: tuple[LayerLoad, ...]
    is_pipelined: bool
    is_anytime: bool
    window: int
    latest_start_s: tuple[float | None, ...]
    latest_refinement_s: tuple[tuple[float | None, ...], ...]
    slack_s: float
    aib_start_s: tuple[float, ...]
    aib_s: tuple[float, ...]
    spans: tuple[Span, ...]
    latency_s: float
    latency_p95_s: float
    compute_s: float
    io_s: float
    wait_s: float
    memory: PlanMemory
    fidelity: float
    meets_target: bool
    reasons: tuple[str, ...]
    expected_accuracy: float | None = None
    slowdown: Slowdown = Slowdown()  # noqa: RUF009 - frozen
    accuracy_interval: AccuracyInterval | None = None
    cut: Cut = "none"

    @property
    def n(self) -> int:
        return len(self.layers)

    @property
    def is_resident(self) -> bool:
        """True when nothing is read at run time."""
        return not any(load.runs for load in self.loads)

    @property
    def base_bits(self) -> Grid:
        """Bits that each shard has for certain when its layer runs: held, or read before it may start."""
        rows = []
        for load, held, bits in zip(self.loads, self.held, self.bits, strict=True):
            row = [min(h, b) if h < FULL_BITS else FULL_BITS for h, b in zip(held, bits, strict=True)]
            for run in load.base:
                for s in range(run.first, run.first + run.count):
                    row[s] = max(row[s], FULL_BITS if run.part == FULL else run.part + 1)
            rows.append(tuple(row))
        return tuple(rows)

    @property
    def preload_runs(self) -> tuple[Run, ...]:
        """What the preload buffer is to hold, bottom layer first: the runs of every plane that is held."""
        runs = []
        for layer, row in zip(self.layers, self.held, strict=True):
            for part in range(FULL + 1):
                is_held = [h == FULL_BITS if part == FULL else part < h < FULL_BITS for h in row]
                runs += [Run(layer, part, first, count) for first, count in _spans(is_held)]
        return tuple(runs)

    def __str__(self) -> str:
        """The plan as a page: submodel, times, memory, the bits of every shard, timeline, reasons."""
        from pliant.plan.page import plan_page  # which imports this module

        return plan_page(self)

    def __repr__(self) -> str:
        """One line: some dozen fields of numbers say nothing in a console."""
        target_s = self.budget.target_s
        target = "" if target_s is None else f" of {format_seconds(target_s)}"
        return (
            f"<Plan {self.name}: {self.n}x{self.width} of {self.shape.n_layers}x{self.shape.n_slices}, "
            f"{format_seconds(self.latency_s)}{target}>"
        )

    def _repr_html_(self) -> str:
        """The page for a notebook: with its picture where matplotlib is installed, else with the table."""
        from pliant.plan.page import plan_html  # which imports this module

        return plan_html(self)

    def load_bytes(self, k: int) -> int:
        """Bytes that layer k reads."""
        return sum(run_bytes(self.shape, run.part) * run.count for run in self.loads[k].runs)


def run_bytes(shape: StoreShape, part: int) -> int:
    """Bytes of one slice of a part."""
    return shape.full_bytes if part == FULL else shape.plane_bytes


def _spans(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Runs of True as (first, count)."""
    first = 0
    for value, group in groupby(flags):
        count = len(list(group))
        if value:
            yield first, count
        first += count
