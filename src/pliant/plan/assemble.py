"""Chosen bits -> a whole Plan: window, latest starts, predicted times, memory. Chooses no bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from pliant.ir.cost import Budget, CostTable, Span, latency, simulate
from pliant.plan.load import Held, LayerLoad, fidelity
from pliant.plan.lower import lower
from pliant.plan.preload import held_bytes
from pliant.plan.result import Grid, Plan, PlanMemory, run_bytes
from pliant.plan.shape import StoreShape

BLOCK = 4096  # reads go outward to whole blocks


@dataclass(frozen=True, slots=True)
class Draft:
    """What a planner has decided; everything else about a plan follows from it."""

    name: str
    layers: tuple[int, ...]
    width: int
    bits: Grid
    held: Held
    loads: tuple[LayerLoad, ...]
    weights: Float[np.ndarray, "n m"]
    slack_s: float
    aib_start_s: tuple[float, ...]
    aib_s: tuple[float, ...]
    reasons: tuple[str, ...]
    is_pipelined: bool = True
    is_anytime: bool = False


def assemble(
    draft: Draft,
    shape: StoreShape,
    costs: CostTable,
    budget: Budget,
    *,
    expected: CostTable | None = None,
    errors: Sequence[float],
    margin: float = 0.0,
    patience: float = 0.5,
    arena_bytes: int = 0,
    preload_bytes: int | None = None,
) -> Plan:
    """The plan of `draft`: checked with `costs`, its spans predicted with `expected` (default: the same).

    The window is the smallest of at least 2 layers that ends no later than an unlimited one. Of the
    time between a layer's planned start and the last moment that keeps the target, the fraction
    `patience` is spent on waiting for late refinements; the rest is kept for late base planes.
    """
    load_s = [_load_seconds(shape, costs, load) for load in draft.loads]
    is_read = any(load_s)
    layer = costs.layer(draft.width)
    layer_s = layer.busy_s if is_read else layer.alone_s
    window = _window(load_s, layer_s, costs.embed_s) if draft.is_pipelined else len(draft.layers)
    starts_s, end_s = pipeline(load_s, layer_s, costs.embed_s, window, is_pipelined=draft.is_pipelined)
    bound_s = costs.tokenise_s + end_s + costs.head_s
    # Counted from the end of tokenising, as the program is.
    deadline_s = budget.latency_s * (1 - margin) - costs.tokenise_s - costs.head_s
    latest: tuple[float | None, ...] = (None,) * len(load_s)
    if draft.is_anytime:
        latest = tuple(
            start + patience * max(0.0, deadline_s - (len(load_s) - k) * layer_s - start)
            for k, start in enumerate(starts_s)
        )
    program = lower(
        shape, draft.layers, draft.width, draft.loads, window, latest, is_pipelined=draft.is_pipelined
    )
    table = expected or costs
    spans = simulate(program, table, {"tokens": 1})
    memory = PlanMemory(
        preload_bytes=held_bytes(shape, draft.held) if preload_bytes is None else preload_bytes,
        working_bytes=working_bytes(shape, draft.loads, window),
        arena_bytes=arena_bytes,
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
        slack_s=draft.slack_s,
        aib_start_s=draft.aib_start_s,
        aib_s=draft.aib_s,
        spans=spans,
        latency_s=table.tokenise_s + latency(spans),
        latency_p95_s=bound_s,
        compute_s=sum(s.seconds for s in spans if s.lane == "cpu"),
        io_s=sum(s.seconds for s in spans if s.lane == "io"),
        wait_s=waiting(spans),
        memory=memory,
        fidelity=fidelity(draft.bits, draft.weights, errors),
        meets_target=bound_s <= budget.latency_s * (1 - margin) + 1e-9,
        reasons=draft.reasons,
    )


def pipeline(
    load_s: Sequence[float], layer_s: float, lead_s: float, window: int, *, is_pipelined: bool = True
) -> tuple[list[float], float]:
    """Start of each layer and the end of the last, every layer taking `layer_s` and its load `load_s[k]`.

    What `simulate` finds when nothing slows anything; `lead_s` of compute comes before the first layer.
    """
    starts_s: list[float] = []
    freed_s: list[float] = []
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
        starts_s.append(max(free_s, arrived_s))
        free_s = starts_s[-1] + layer_s
        if seconds:
            freed_s.append(free_s)
    return starts_s, free_s


def working_bytes(shape: StoreShape, loads: Sequence[LayerLoad], window: int) -> int:
    """Memory for what `window` layers read, each read outward to whole blocks."""
    layers = [
        sum(-(-run.count * run_bytes(shape, run.part) // BLOCK) * BLOCK + BLOCK for run in load.runs)
        for load in loads
    ]
    return max(layers, default=0) * min(window, sum(1 for n in layers if n))


def waiting(spans: Sequence[Span]) -> float:
    """Seconds that lane cpu stood still between its first step and its last: the bubbles."""
    cpu = [s for s in spans if s.lane == "cpu"]
    return max(0.0, sum(b.start_s - a.end_s for a, b in pairwise(cpu)))


def _window(load_s: Sequence[float], layer_s: float, lead_s: float) -> int:
    n = max(2, len(load_s))
    best_s = pipeline(load_s, layer_s, lead_s, n)[1]
    return next(w for w in range(2, n + 1) if pipeline(load_s, layer_s, lead_s, w)[1] <= best_s + 1e-12)


def _load_seconds(shape: StoreShape, costs: CostTable, load: LayerLoad) -> float:
    runs = load.runs
    n_bytes = sum(run_bytes(shape, run.part) * run.count for run in runs)
    return costs.disk.seconds(n_bytes, len(runs)) * costs.io_slowdown if runs else 0.0
