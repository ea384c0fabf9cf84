"""Split a session's memory limit into preload buffer and working buffer.

Activations and the weights that every plan needs (codebooks, norms, embeddings, head) come first. The rest is
split so that more memory never gives a worse plan: the search tries pairs from two fixed ladders, sizes of
the preload buffer and sizes of the reads for one layer. A larger limit only adds pairs, so the best plan
among them is never worse. For a fixed size of a layer's reads, a larger preload buffer never gives a worse
plan (see `PlanOptions`). So each size of a layer's reads is tried with the largest buffer first, and the
search stops as soon as no smaller buffer can win.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heappop, heappush

from pliant.compiler.executable.encoder_stages import arena_bytes, fixed_bytes, word_format
from pliant.errors import BudgetError, InputError
from pliant.ir.bitwidths import LOWEST_BITS
from pliant.ir.cost import cost_table
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.plan import NO_TARGET_S, Plan
from pliant.plan.submodel.assemble_plan import LEAST_WINDOW
from pliant.plan.submodel.shape import StoreShape
from pliant.plan.submodel.submodel import rank_submodels, submodels
from pliant.quantities import format_seconds
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner
from pliant.store.container import BLOCK
from pliant.store.read import Store

_PRELOAD_STEP, _LAYER_STEP = 2 ** (1 / 16), 2 ** (1 / 2)
"""Factors between the rungs of the two ladders: at most 4 % of the preload buffer are unused."""


@dataclass(frozen=True, slots=True)
class MemoryOverhead:
    """Bytes that a session needs besides planned weights: activations, and the weights that every plan needs.

    Activations are those of inputs of up to `n_tokens`.
    """

    arena_bytes: int
    fixed_bytes: int
    n_tokens: int

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + self.fixed_bytes


@dataclass(frozen=True, slots=True)
class _Split:
    """A plan with its granted preload buffer and its granted bytes of reads for a layer."""

    preload_bytes: int
    layer_bytes: int
    plan: Plan

    @property
    def needs_bytes(self) -> int:
        """The least memory limit under which this split is tried, and fits."""
        granted_bytes = self.preload_bytes + LEAST_WINDOW * self.layer_bytes
        return max(granted_bytes, self.plan.memory.weight_bytes)


def split_memory(
    planner: SubmodelPlanner, options: SessionOptions, overhead: MemoryOverhead
) -> SessionOptions:
    """`options` with its memory limit, if any, split into preload and working buffer.

    The split with the highest expected accuracy at `options.length` wins; more memory never makes that worse.
    A given preload or working buffer is kept. A chosen preload buffer has at most `most_preload_bytes`
    and a chosen working buffer at most `most_working_bytes`, unless no plan fits with so little.

    Raises BudgetError naming the least memory under which a plan meets the target, InputError if the
    requested buffers do not fit.
    """
    if options.memory_bytes is None:
        return options
    left = options.memory_bytes - overhead.total_bytes
    asked = (options.preload_bytes or 0) + (options.working_bytes or 0)
    if asked > max(left, 0):
        raise _too_much_asked(options, asked, overhead)
    if options.working_bytes is not None:
        preload, rest = options.preload_bytes, left - options.working_bytes
        if preload is None:
            most = options.most_preload_bytes
            preload = rest if most is None else min(rest, most)
        return replace(options, preload_bytes=preload)
    split = _chosen(planner, options, left, overhead)
    held = split.plan.memory.preload_bytes
    preload = held if options.preload_bytes is None else options.preload_bytes
    working, most = left - held, options.most_working_bytes
    if most is not None:
        working = min(working, max(most, split.plan.memory.working_bytes))
    if working < BLOCK:  # no read fits
        return replace(options, preload_bytes=preload, layer_bytes=0)
    return replace(options, preload_bytes=preload, working_bytes=working, layer_bytes=split.layer_bytes)


def least_weight_bytes(planner: SubmodelPlanner, options: SessionOptions) -> int:
    """The least bytes of weights under which a plan meets the target. Raises BudgetError if no plan does."""
    preloads, layers = _ladders(planner, options)
    enough = _least(planner, options, preloads, layers)
    if enough is None:  # no plan with unlimited memory: the error names the nearest feasible target
        planner.plan_resident(replace(options, memory_bytes=None, preload_bytes=preloads[-1]))
        raise AssertionError("there is a plan that no split of the memory gives")
    return enough.needs_bytes


def _ladders(planner: SubmodelPlanner, options: SessionOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ladders: sizes of the preload buffer, and of the reads for a layer."""
    preloads = _preload_sizes(planner.shape) if options.preload_bytes is None else (options.preload_bytes,)
    return preloads, _layer_sizes(planner.shape)


def _chosen(
    planner: SubmodelPlanner, options: SessionOptions, n_bytes: int, overhead: MemoryOverhead
) -> _Split:
    preloads, layers = _ladders(planner, options)
    most = options.most_preload_bytes
    few = preloads if most is None else preloads[: bisect_right(preloads, most)]
    most, fewer_bytes = options.preload_bytes if most is None else most, n_bytes
    if most is not None and options.most_working_bytes is not None:
        fewer_bytes = min(n_bytes, most + options.most_working_bytes)
    best = _best(planner, options, fewer_bytes, few, layers)
    if best is None and fewer_bytes < n_bytes:
        best = _best(planner, options, n_bytes, few, layers)
    if best is None and few != preloads:
        best = _best(planner, options, n_bytes, preloads, layers)
    if best is not None:
        return best
    raise _too_little(options, least_weight_bytes(planner, options), overhead)


def _best(
    planner: SubmodelPlanner,
    options: SessionOptions,
    n_bytes: int,
    preloads: Sequence[int],
    layers: Sequence[int],
) -> _Split | None:
    """The best plan whose weights take at most `n_bytes`; None if no pair of these ladders fits.

    Both ladders ascend; among equally good plans, one that fits is preferred.
    """
    heap: list[tuple[tuple[float, ...], bool, int, int, _Split]] = []

    def push(rung: int, layer_bytes: int) -> None:
        """Add the next smaller preload buffer, if there is one."""
        if rung < 0:
            return
        plan = _planned(planner, options, preloads[rung], layer_bytes)
        if plan is not None:  # else a smaller buffer does not meet the target either
            split = _Split(preloads[rung], layer_bytes, plan)
            worth = tuple(-x for x in _worth(planner, options, plan))
            heappush(heap, (worth, split.needs_bytes > n_bytes, layer_bytes, rung, split))

    for layer_bytes in layers:
        push(bisect_right(preloads, n_bytes - LEAST_WINDOW * layer_bytes) - 1, layer_bytes)
    while heap:
        _, is_over, layer_bytes, rung, split = heappop(heap)
        if not is_over:
            return split
        push(rung - 1, layer_bytes)
    return None


def _least(
    planner: SubmodelPlanner, options: SessionOptions, preloads: Sequence[int], layers: Sequence[int]
) -> _Split | None:
    """The plan that `_best` finds under the smallest limit under which it finds one."""
    best: _Split | None = None
    for layer_bytes in layers:
        if best is not None and LEAST_WINDOW * layer_bytes >= best.needs_bytes:
            break
        first = bisect_left(preloads, True, key=partial(_is_planned, planner, options, layer_bytes))
        for preload_bytes in preloads[first:]:
            if best is not None and preload_bytes + LEAST_WINDOW * layer_bytes >= best.needs_bytes:
                break
            plan = _planned(planner, options, preload_bytes, layer_bytes)
            if plan is None:
                continue
            split = _Split(preload_bytes, layer_bytes, plan)
            if best is None or split.needs_bytes < best.needs_bytes:
                best = split
    return best


def _is_planned(
    planner: SubmodelPlanner, options: SessionOptions, layer_bytes: int, preload_bytes: int
) -> bool:
    """Whether a plan meets the target. If one does with this preload buffer, one does with every larger
    buffer.
    """
    return _planned(planner, options, preload_bytes, layer_bytes) is not None


@lru_cache(maxsize=64)
def _preload_sizes(shape: StoreShape) -> tuple[int, ...]:
    """0, then sizes of whole planes in small steps up to all shards at the most bits."""
    whole = shape.n_layers * shape.n_slices
    most = shape.most_bytes
    sizes = {0, most, whole * shape.planes * shape.plane_bytes}
    n_planes = 1.0
    while n_planes * shape.plane_bytes < most:
        sizes.add(int(n_planes) * shape.plane_bytes)
        n_planes *= _PRELOAD_STEP
    return tuple(sorted(sizes))


@lru_cache(maxsize=64)
def _layer_sizes(shape: StoreShape) -> tuple[int, ...]:
    """0, then from the lowest bits of the narrowest layer to the most bits of a whole layer."""
    base = LOWEST_BITS * shape.plane_bytes
    # Before full fidelity, the lowest bits of the layer are read too.
    most = shape.n_slices * (shape.full_bytes + base if shape.has_full else shape.planes * shape.plane_bytes)
    sizes = {0, most}
    n_bytes = float(base * shape.widths[0])
    while n_bytes < most:
        sizes.add(int(n_bytes))
        n_bytes *= _LAYER_STEP
    return tuple(sorted(sizes))


def _planned(
    planner: SubmodelPlanner, options: SessionOptions, preload_bytes: int, layer_bytes: int
) -> Plan | None:
    """The plan for `options.length` with these preloaded bytes and reads per layer; None if there is none."""
    try:
        return planner.plan_resident(replace(options, preload_bytes=preload_bytes, layer_bytes=layer_bytes))[
            0
        ]
    except BudgetError:
        return None


def _worth(planner: SubmodelPlanner, options: SessionOptions, plan: Plan) -> tuple[float, ...]:
    """A sort key, greater for better plans: whether the target is met, then accuracy, or submodel and
    fidelity.
    """
    how, shape = options.planning, planner.shape
    if not plan.meets_target:
        return (0.0, -plan.latency_p95_s)
    if plan.expected_accuracy is not None and how.choose == "accuracy":
        return (1.0, 1.0 + plan.expected_accuracy)
    costs = cost_table(planner.profile, planner.bucket(options.length), "p95")
    order = rank_submodels(submodels(shape.n_layers, shape.widths, costs), how.similar)  # STI 5.3
    place = next(i for i, c in enumerate(order) if (c.n, c.m) == (plan.n, plan.width))
    return (1.0, -float(place), plan.fidelity)


def _too_much_asked(options: SessionOptions, asked: int, overhead: MemoryOverhead) -> InputError:
    """The error for requested buffers that exceed the memory."""
    total = asked + overhead.total_bytes
    return InputError(
        f"a preload and a working buffer of {asked} bytes do not fit into {options.memory_bytes} bytes of "
        f"memory beside activations ({overhead.arena_bytes}) and codebooks, embeddings and head "
        f"({overhead.fixed_bytes}): give at least {total} bytes, or smaller buffers, or leave preload and "
        "working out, so that the planner splits the memory."
    )


def _too_little(options: SessionOptions, weight_bytes: int, overhead: MemoryOverhead) -> BudgetError:
    """The error that names the least sufficient memory and its parts."""
    total = weight_bytes + overhead.total_bytes
    is_hurried = options.target_s < NO_TARGET_S
    within = f" within {format_seconds(options.target_s)}" if is_hurried else ""
    return BudgetError(
        f"{options.memory_bytes} bytes of memory are too little to answer {overhead.n_tokens} tokens"
        f"{within}: weights take at least {weight_bytes}, activations {overhead.arena_bytes}, codebooks, "
        f"embeddings and head {overhead.fixed_bytes}. Give at least {total} bytes"
        f"{', or raise the latency target' if is_hurried else ''}."
    )


def memory_overhead(store: Store, compute: ComputeDtype, n_tokens: int) -> MemoryOverhead:
    """The bytes besides weights of a session on `store` with room for `n_tokens`."""
    layers = [store.resident(k) for k in range(store.spec.n_layers)]
    fixed = fixed_bytes(store.spec, layers, store.embeddings, store.head, compute)
    arena = arena_bytes(store.spec, word_format(store.embeddings), n_tokens, compute)
    return MemoryOverhead(arena, fixed, n_tokens)


def most_tokens(store: Store, compute: ComputeDtype, n_bytes: int) -> int:
    """The most tokens, up to the model's limit, for which `memory_overhead` is at most `n_bytes`."""
    most = store.spec.max_tokens
    whole = memory_overhead(store, compute, most)
    if whole.total_bytes <= n_bytes:
        return most
    words, left = word_format(store.embeddings), n_bytes - whole.fixed_bytes
    return bisect_right(range(1, most), left, key=lambda n: arena_bytes(store.spec, words, n, compute))
