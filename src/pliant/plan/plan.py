"""A plan: its budget, what runs and when, its memory, and the reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import FULL, Program, SliceRun
from pliant.plan.submodel.accuracy import AccuracyInterval
from pliant.plan.submodel.io_plan import LayerLoad
from pliant.plan.submodel.lower_plan import lower
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import CutReason
from pliant.quantities import format_seconds

BitGrid = tuple[tuple[int, ...], ...]


NO_TARGET_S = 3600.0
"""The target used when none is given: the most accurate plan runs on any realistic device."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The user's budget: `target_s` from text to answer (T), `preload_bytes` kept resident (|S|).

    `working_bytes` limits the read buffers of layers in flight, `layer_bytes` the bytes read for one layer;
    None means unlimited. `memory_bytes` is the total that contains these, None if none was given.
    """

    target_s: float
    preload_bytes: int
    working_bytes: int | None = None
    layer_bytes: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.target_s < float("inf"):
            raise BudgetError(f"a latency target of {self.target_s} s cannot be met; give a positive time.")
        if self.preload_bytes < 0:
            raise BudgetError(f"a preload buffer of {self.preload_bytes} bytes cannot be; give 0 or more.")
        if self.working_bytes is not None and self.working_bytes < 4096:
            raise BudgetError(
                f"a working buffer of {self.working_bytes} bytes holds no read: give 4096 or more, or none."
            )

    @property
    def requested_s(self) -> float | None:
        """The requested target; None if no target was given."""
        return requested_target(self.target_s)


def requested_target(target_s: float) -> float | None:
    """Return a target for display: None for `NO_TARGET_S` and above, which mean no target."""
    return None if target_s >= NO_TARGET_S else target_s


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Predicted bytes: weights kept between runs, weights of the layers in flight, intermediate tensors.

    `fixed_bytes` are common to all plans of a model: codebooks, norms, embeddings and the head.
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
        """The memory that a session of this plan adds to its process."""
        return self.weight_bytes + self.arena_bytes + self.fixed_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """One submodel with its bits, loads and predicted times; it prints as a readable page.

    `layers` are the model's own layer numbers, in order; each runs its leading `width` slices. `bits[k][s]`
    is the planned number of bits of shard s in the k-th layer; `held[k][s]` is the number of its planes (32:
    full fidelity) in memory before the run. `aib_start_s` are the accumulated IO budgets with the preload
    bonus before any debit, `aib_s` the remainders. The loads of `window` layers may be in memory beside the
    running layer. `latest_start_s[k]` is the latest start of layer k without its missing refinements, None to
    wait for all of them. A refinement is not started after `latest_refinement_s[k][i]`, because base planes
    of later layers would then be late. `spans` are the predicted steps of `program` at median costs, from the
    end of tokenising; `latency_s` is end to end, `latency_p95_s` an upper bound at the costs used for
    planning. `expected_accuracy` is a fraction with its 95 % interval, None if nothing was measured.
    `dilation` is the factor applied to the profile's costs. `cut` says why layers or slices may be left out;
    "untrained" occurs only with `PlanOptions.depths` "any".
    """

    name: str
    budget: Budget
    shape: StoreShape
    layers: tuple[int, ...]
    width: int
    bits: BitGrid
    held: BitGrid
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
    dilation: Dilation = Dilation()  # noqa: RUF009 - frozen
    accuracy_interval: AccuracyInterval | None = None
    cut: CutReason = "none"

    @property
    def n(self) -> int:
        return len(self.layers)

    @property
    def n_slots(self) -> int:
        """The maximum number of layers whose reads are in memory at once."""
        return self.window if self.is_pipelined else self.n

    @property
    def program(self) -> Program:
        """The program of the plan, lowered again at each access."""
        return lower(
            self.shape, self.layers, self.width, self.loads, self.window, self.latest_start_s,
            self.latest_refinement_s, is_pipelined=self.is_pipelined,
        )  # fmt: skip

    @property
    def is_resident(self) -> bool:
        """True if nothing is read at run time."""
        return not any(load.runs for load in self.loads)

    @property
    def base_bits(self) -> BitGrid:
        """The bits that each shard is guaranteed when its layer runs: held, or read before it may start."""
        rows = []
        for load, held, bits in zip(self.loads, self.held, self.bits, strict=True):
            row = [min(h, b) if h < FULL_BITS else FULL_BITS for h, b in zip(held, bits, strict=True)]
            for run in load.base:
                for s in range(run.first, run.first + run.count):
                    row[s] = max(row[s], FULL_BITS if run.part == FULL else run.part + 1)
            rows.append(tuple(row))
        return tuple(rows)

    @property
    def preload_runs(self) -> tuple[SliceRun, ...]:
        """The content of the preload buffer, bottom layer first: the runs of every held plane."""
        runs = []
        for layer, row in zip(self.layers, self.held, strict=True):
            for part in range(FULL + 1):
                is_held = [h == FULL_BITS if part == FULL else part < h < FULL_BITS for h in row]
                runs += [SliceRun(layer, part, first, count) for first, count in _spans(is_held)]
        return tuple(runs)

    def __str__(self) -> str:
        """Return the plan as a page: submodel, times, memory, the bits of every shard, timeline, reasons."""
        from pliant.plan.plan_page import plan_page  # which imports this module

        return plan_page(self)

    def __repr__(self) -> str:
        """Return one line: the full list of fields is unreadable in a console."""
        target_s = self.budget.requested_s
        target = "" if target_s is None else f" of {format_seconds(target_s)}"
        return (
            f"<Plan {self.name}: {self.n}x{self.width} of {self.shape.n_layers}x{self.shape.n_slices}, "
            f"{format_seconds(self.latency_s)}{target}>"
        )

    def _repr_html_(self) -> str:
        """Return the page for a notebook: with a picture if matplotlib is installed, else with the table."""
        from pliant.plan.plan_page import plan_html  # which imports this module

        return plan_html(self)

    def load_bytes(self, k: int) -> int:
        """Return the bytes that layer k reads."""
        return sum(self.shape.part_bytes(run.part) * run.count for run in self.loads[k].runs)


def _spans(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield runs of True as (first, count)."""
    first = 0
    for value, group in groupby(flags):
        count = len(list(group))
        if value:
            yield first, count
        first += count
