"""Print plans as C tables: their steps, the steps' dependencies, and the reads of weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pliant.compiler.aot.c_source import format_array, format_numbers
from pliant.ir.program import Compute, Load, Program, Step
from pliant.store.place_reads import place_reads
from pliant.store.read import ReadExtent, SliceRun, Store


@dataclass(frozen=True, slots=True)
class LadderPlan:
    """A plan for inputs of up to `n_tokens` under one target, with reads of `n_slots` layers in memory."""

    target_s: float
    n_tokens: int
    predicted_s: float
    meets: bool
    layers: tuple[int, ...]
    width: int
    n_slots: int
    program: Program


@dataclass(slots=True)
class ReadTable:
    """Collects the extents and pieces of plans as C entries."""

    store: Store
    extents: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def add(self, extent: ReadExtent, to: int) -> int:
        """Add a read into byte `to`; returns its number."""
        first = len(self.pieces)
        for run, start in zip(extent.runs, extent.starts, strict=True):
            self.pieces.append(f"{{{run.layer}, {run.part}, {run.first}, {run.count}, {start}u}}")
        self.extents.append(
            f"{{{extent.layer}, {extent.n_bytes}u, {extent.offset}u, {to}u, {first}u, {len(extent.runs)}u}}"
        )
        return len(self.extents) - 1


def plans_source(plans: Sequence[LadderPlan], forms: Mapping[int, int], reads: ReadTable) -> tuple[str, int]:
    """The array PLANS, and the bytes of the working buffer. `forms` maps widths to the numbers of their
    forms.
    """
    lines, entries, ring_bytes = [], [], 0
    for i, plan in enumerate(plans):
        (segment,) = plan.program.segments
        placed = place_reads(plan.program, plan.n_slots, reads.store)
        ring_bytes = max([ring_bytes, *(at + e.n_bytes for known in placed.values() for e, at in known)])
        waits: list[int] = []
        steps = []
        for number, step in enumerate(segment.steps):
            steps.append(_step(number, step, segment.steps, forms, waits))
            first = len(reads.extents)
            if isinstance(step.work, Load):
                for extent, at in placed[step.work]:
                    reads.add(extent, at)
            steps[-1] += f"{first}u, {len(reads.extents) - first}u, {_latest_us(step)}}}"
        lines.append(format_array(f"struct step STEPS_{i}", steps))
        lines.append(format_numbers(f"uint16_t WAITS_{i}", waits))
        entries.append(
            f"{{{round(plan.target_s * 1e6)}u, {round(plan.predicted_s * 1e6)}u, {plan.n_tokens}u, "
            f"{len(plan.layers)}u, {plan.width}u, {len(steps)}u, {int(plan.meets)}, STEPS_{i}, WAITS_{i}}}"
        )
    return "\n".join([*lines, format_array("struct plan PLANS", entries)]), ring_bytes


def preload_source(runs: Sequence[SliceRun], reads: ReadTable) -> tuple[str, int, int]:
    """The array PRELOAD of the reads that fill the preload buffer, the buffer's bytes, and the bytes of the
    largest read.
    """
    extents = [extent for run in runs for extent in reads.store.plan_reads((run,))]
    kept = sum(-(-reads.store.run_bytes(run) // 64) * 64 for extent in extents for run in extent.runs)
    before = len(reads.extents)
    for extent in extents:
        reads.add(extent, 0)
    entries = reads.extents[before:]
    del reads.extents[before:]
    largest = max((extent.n_bytes for extent in extents), default=0)
    return format_array("struct extent PRELOAD", entries, "{0, 0, 0, 0, 0, 0}"), kept, largest


def _step(number: int, step: Step, steps: Sequence[Step], forms: Mapping[int, int], waits: list[int]) -> str:
    """A step's entry without its reads; its dependencies are appended to `waits`."""
    first_after = len(waits)
    waits.extend(step.after)
    first_prefer = len(waits)
    waits.extend(step.prefer)
    consumers = [i for i, other in enumerate(steps) if number in (*other.after, *other.prefer)]
    work = step.work
    if isinstance(work, Load):
        assert len(consumers) <= 1, f"step {number} brings weights in for several steps"
        kind, layer, form = "WORK_LOAD", work.layer, 0
    else:
        assert isinstance(work, Compute)
        kind = f"WORK_{work.kernel.upper()}"
        layer, form = work.layer or 0, forms.get(work.width or 0, 0)
    consumer = consumers[0] if isinstance(work, Load) and consumers else -1
    after, prefer = f"{first_after}, {len(step.after)}", f"{first_prefer}, {len(step.prefer)}"
    return f"{{{kind}, {layer}, {form}, {consumer}, {after}, {prefer}, "


def _latest_us(step: Step) -> int:
    return -1 if step.latest_start_s is None else round(step.latest_start_s * 1e6)
