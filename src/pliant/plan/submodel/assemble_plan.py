"""Assemble a plan from the chosen bits: window, latest starts, predicted times, memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pliant.arrays import Float
from pliant.ir.cost import EMBED, HEAD, TOKENISE, Cost, Span, latency, simulate
from pliant.ir.link import Link
from pliant.ir.program import SliceRun
from pliant.plan.plan import BitGrid, Budget, Plan, PlanMemory
from pliant.plan.submodel.io_plan import HeldPlanes, LayerLoad, count_reads, fidelity
from pliant.plan.submodel.lower_plan import lower
from pliant.plan.submodel.preload_set import held_bytes
from pliant.plan.submodel.prices import disk_during_compute, layer_seconds
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import CutReason
from pliant.store.coding.shard_order import block_bytes

LEAST_WINDOW = 2
"""One layer is read while another runs."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A planner's decisions; everything else in a plan follows from them."""

    name: str
    layers: tuple[int, ...]
    width: int
    bits: BitGrid
    held: HeldPlanes
    loads: tuple[LayerLoad, ...]
    weights: Float[np.ndarray, "n m"]
    slack_s: float
    aib_start_s: tuple[float, ...]
    aib_s: tuple[float, ...]
    reasons: tuple[str, ...]
    is_pipelined: bool = True
    is_anytime: bool = False
    cut: CutReason = "none"


def assemble(
    draft: PlanDraft,
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    *,
    expected: Cost | None = None,
    errors: Sequence[float],
    margin: float = 0.0,
    patience: float = 0.5,
    io_reserve: float = 1.0,
    arena_bytes: int = 0,
    fixed_bytes: int = 0,
    preload_bytes: int | None = None,
) -> Plan:
    """Return the plan of `draft`: checked with `costs`, spans predicted with `expected` (or `costs`).

    The window is the smallest of at least 2 layers that ends no later than an unlimited one. Of the time
    between a layer's planned start and its latest start for the target, the fraction `patience` is spent on
    waiting for late refinements; the rest is kept for late base planes. No refinement is started if the base
    planes of later layers, read `io_reserve` times slower than planned, would then be late.
    """
    load_s = [_load_seconds(shape, costs, load) for load in draft.loads]
    layer_s = layer_seconds(costs, draft.width, with_io=any(load_s))
    start_by_s = _start_by(costs, budget, draft.loads, draft.width, margin)
    read_by_s = _read_by(shape, costs, draft.loads, draft.width, start_by_s, io_reserve)
    window = len(draft.layers)
    if draft.is_pipelined:
        base_s = [io_reserve * _seconds(shape, costs, load.base) for load in draft.loads]
        window = _window(load_s, base_s, layer_s, costs.seconds(EMBED), read_by_s, start_by_s)
        window = _fitting(window, shape, draft.loads, budget.working_bytes)
    starts_s, end_s, _ = pipeline(
        load_s, layer_s, costs.seconds(EMBED), window, is_pipelined=draft.is_pipelined
    )
    bound_s = costs.seconds(TOKENISE) + end_s + costs.seconds(HEAD)
    latest: tuple[float | None, ...] = (None,) * len(load_s)
    latest_refinement: tuple[tuple[float | None, ...], ...] = tuple(
        (None,) * len(load.refinements) for load in draft.loads
    )
    if draft.is_anytime:
        latest = tuple(
            start + patience * max(0.0, by - start) for start, by in zip(starts_s, start_by_s, strict=True)
        )
        latest_refinement = tuple(
            tuple(
                None if by == float("inf") else max(0.0, by - _seconds(shape, costs, runs))
                for runs in load.refinements
            )
            for load, by in zip(draft.loads, read_by_s, strict=True)
        )
    program = lower(
        shape, draft.layers, draft.width, draft.loads, window, latest, latest_refinement,
        is_pipelined=draft.is_pipelined,
    )  # fmt: skip
    table = expected or costs
    spans = simulate(program, table, {"tokens": 1})
    memory = PlanMemory(
        preload_bytes=held_bytes(shape, draft.held) if preload_bytes is None else preload_bytes,
        working_bytes=working_bytes(shape, draft.loads, window),
        arena_bytes=arena_bytes,
        fixed_bytes=fixed_bytes,
    )
    return Plan(
        name=draft.name,
        budget=budget,
        shape=shape,
        layers=draft.layers,
        width=draft.width,
        bits=draft.bits,
        held=tuple(tuple(row) for row in draft.held.tolist()),
        loads=draft.loads,
        is_pipelined=draft.is_pipelined,
        is_anytime=draft.is_anytime,
        window=window,
        latest_start_s=latest,
        latest_refinement_s=latest_refinement,
        slack_s=draft.slack_s,
        aib_start_s=draft.aib_start_s,
        aib_s=draft.aib_s,
        spans=spans,
        latency_s=table.seconds(TOKENISE) + latency(spans),
        latency_p95_s=bound_s,
        compute_s=sum((s.seconds for s in spans if s.lane == "cpu"), 0.0),
        io_s=sum((s.seconds for s in spans if s.lane == "io"), 0.0),
        wait_s=idle_s(spans),
        memory=memory,
        fidelity=fidelity(draft.bits, draft.weights, errors),
        meets_target=bound_s <= budget.target_s * (1 - margin) + 1e-9,
        reasons=draft.reasons,
        cut=draft.cut,
    )


def pipeline(
    load_s: Sequence[float], layer_s: float, lead_s: float, window: int, *, is_pipelined: bool = True
) -> tuple[list[float], float, list[float]]:
    """Return each layer's start, the last end, and each load's end, for `layer_s` and loads of `load_s[k]`.

    Equals `simulate` without slow-downs; `lead_s` of compute comes before the first layer.
    """
    starts_s: list[float] = []
    freed_s: list[float] = []
    read_s: list[float] = []
    io_s = 0.0
    free_s = lead_s
    if not is_pipelined:
        free_s = max(lead_s, sum(load_s))
        load_s = [0.0] * len(load_s)
    for seconds in load_s:
        arrived_s = 0.0
        if seconds:
            if len(freed_s) >= window:
                io_s = max(io_s, freed_s[-window])
            arrived_s = io_s = io_s + seconds
        read_s.append(io_s)
        starts_s.append(max(free_s, arrived_s))
        free_s = starts_s[-1] + layer_s
        if seconds:
            freed_s.append(free_s)
    return starts_s, free_s, read_s


def needed_window(
    shape: StoreShape,
    costs: Cost,
    budget: Budget,
    loads: Sequence[LayerLoad],
    width: int,
    *,
    margin: float,
    io_reserve: float,
) -> int:
    """Return how many layers' loads must be in memory at once, so that none waits for buffer space."""
    load_s = [_load_seconds(shape, costs, load) for load in loads]
    base_s = [io_reserve * _seconds(shape, costs, load.base) for load in loads]
    layer_s = layer_seconds(costs, width, with_io=any(load_s))
    start_by_s = _start_by(costs, budget, loads, width, margin)
    read_by_s = _read_by(shape, costs, loads, width, start_by_s, io_reserve)
    return _window(load_s, base_s, layer_s, costs.seconds(EMBED), read_by_s, start_by_s)


def working_bytes(shape: StoreShape, loads: Sequence[LayerLoad], window: int) -> int:
    """Return the memory for the reads of `window` layers, each rounded outward to whole blocks."""
    layers = [sum(_block_bytes(shape, runs) for runs in (load.base, *load.refinements)) for load in loads]
    return max(layers, default=0) * min(window, sum(1 for n in layers if n))


def _fitting(window: int, shape: StoreShape, loads: Sequence[LayerLoad], limit: int | None) -> int:
    """Return `window`, reduced while the working memory exceeds its limit; a smaller window costs time."""
    while limit is not None and window > LEAST_WINDOW and working_bytes(shape, loads, window) > limit:
        window -= 1
    return window


def _block_bytes(shape: StoreShape, runs: Sequence[SliceRun]) -> int:
    offsets = shape.offsets
    return block_bytes(
        (at, at + shape.part_bytes(run.part))
        for run in runs
        for at in offsets[run.part][run.first : run.first + run.count]
    )


def idle_s(spans: Sequence[Span]) -> float:
    """Return the seconds that lane cpu was idle between its first and last step (the bubbles)."""
    cpu = [s for s in spans if s.lane == "cpu"]
    return max(0.0, sum((b.start_s - a.end_s for a, b in pairwise(cpu)), 0.0))


def granule_s(shape: StoreShape, disk: Link, width: int) -> float:
    """Return the seconds of the longest refinement: one plane of a layer, or one shard's full fidelity."""
    return disk.seconds(max(width * shape.plane_bytes, shape.full_bytes if shape.has_full else 0))


def _start_by(
    costs: Cost, budget: Budget, loads: Sequence[LayerLoad], width: int, margin: float
) -> list[float]:
    """Return the latest start of each layer for the target, from the end of tokenising."""
    layer_s = layer_seconds(costs, width, with_io=any(load.runs for load in loads))
    deadline_s = budget.target_s * (1 - margin) - costs.seconds(TOKENISE) - costs.seconds(HEAD)
    return [deadline_s - (len(loads) - k) * layer_s for k in range(len(loads))]


def _read_by(
    shape: StoreShape,
    costs: Cost,
    loads: Sequence[LayerLoad],
    width: int,
    start_by_s: Sequence[float],
    io_reserve: float,
) -> list[float]:
    """Return when refinements of each layer must have ended so that all later base planes are in time."""
    base_s = [_seconds(shape, costs, load.base) for load in loads]
    spare_s = (io_reserve - 1) * granule_s(shape, disk_during_compute(costs), width)
    by_s = [float("inf")] * len(base_s)
    for k in range(len(base_s) - 2, -1, -1):
        by_s[k] = min(by_s[k + 1], start_by_s[k + 1]) - io_reserve * base_s[k + 1]
    return [by - spare_s for by in by_s]


def _window(
    load_s: Sequence[float],
    base_s: Sequence[float],
    layer_s: float,
    lead_s: float,
    read_by_s: Sequence[float],
    start_by_s: Sequence[float],
) -> int:
    """Return the smallest window that ends no later than an unlimited one and delays no refinement too far.

    It must not delay the base planes (`base_s`, at their slowest) either if layers start as late as allowed.
    """
    n = max(LEAST_WINDOW, len(load_s))
    _, best_s, read_s = pipeline(load_s, layer_s, lead_s, n)
    for window in range(LEAST_WINDOW, n):
        _, end_s, ends_s = pipeline(load_s, layer_s, lead_s, window)
        in_time = all(
            end <= max(free, by) + 1e-12 for end, free, by in zip(ends_s, read_s, read_by_s, strict=True)
        )
        if end_s <= best_s + 1e-12 and in_time and _holds_late(base_s, layer_s, start_by_s, window):
            return window
    return n


def _holds_late(base_s: Sequence[float], layer_s: float, start_by_s: Sequence[float], window: int) -> bool:
    """Return whether base planes are in time even if every layer starts as late as allowed."""
    freed_s: list[float] = []
    io_s = 0.0
    for seconds, by in zip(base_s, start_by_s, strict=True):
        if seconds:
            io_s = max(io_s, freed_s[-window]) if len(freed_s) >= window else io_s
            io_s += seconds
            freed_s.append(by + layer_s)
        if io_s > by + 1e-12:
            return False
    return True


def _load_seconds(shape: StoreShape, costs: Cost, load: LayerLoad) -> float:
    return sum((_seconds(shape, costs, runs) for runs in (load.base, *load.refinements)), 0.0)


def _seconds(shape: StoreShape, costs: Cost, runs: Sequence[SliceRun]) -> float:
    n_bytes = sum(shape.part_bytes(run.part) * run.count for run in runs)
    return disk_during_compute(costs).seconds(n_bytes, count_reads(shape, runs)) if runs else 0.0
