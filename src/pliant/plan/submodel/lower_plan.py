"""Lower the parts of a plan to a program: embedding, layers, head, and their loads."""

from collections.abc import Sequence

from pliant.ir.cost import EMBED, HEAD
from pliant.ir.program import Compute, Load, Program, Segment, SliceRun, Step
from pliant.plan.submodel.io_plan import LayerLoad, count_reads
from pliant.plan.submodel.shape import StoreShape


def lower(
    shape: StoreShape,
    layers: Sequence[int],
    width: int,
    loads: Sequence[LayerLoad],
    window: int,
    latest_start_s: Sequence[float | None],
    latest_refinement_s: Sequence[Sequence[float | None]],
    *,
    is_pipelined: bool,
) -> Program:
    """Return a program with loads on lane io, base planes first; embed, layers and head on lane cpu.

    A layer waits for its base planes and prefers its refinements; the first load of a layer waits until the
    window has a free buffer. Without pipelining the first layer waits for every load.
    """
    steps = [Step("cpu", EMBED)]
    sequential = None if is_pipelined else _all_loads(shape, loads, steps)
    freed: list[int] = []  # layers with loads, in order: the number of the step that frees their buffer
    for k, (layer, load) in enumerate(zip(layers, loads, strict=True)):
        after: tuple[int, ...] = sequential or ()
        prefer: tuple[int, ...] = ()
        if is_pipelined and load.runs:
            gate = (freed[-window],) if len(freed) >= window else ()
            after, prefer = _layer_loads(shape, load, gate, latest_refinement_s[k], steps)
        latest = latest_start_s[k] if prefer else None
        steps.append(Step("cpu", Compute("layer", layer, width), after, prefer, latest))
        if load.runs:
            freed.append(len(steps) - 1)
        sequential = None
    steps.append(Step("cpu", HEAD))
    return Program((Segment(tuple(steps)),))


def _layer_loads(
    shape: StoreShape,
    load: LayerLoad,
    gate: tuple[int, ...],
    latest_s: Sequence[float | None],
    steps: list[Step],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    after: tuple[int, ...] = ()
    prefer: tuple[int, ...] = ()
    if load.base:
        steps.append(_load_step(shape, load.layer, load.base, gate))
        after = (len(steps) - 1,)
        gate = ()
    for runs, at_s in zip(load.refinements, latest_s, strict=True):
        steps.append(_load_step(shape, load.layer, runs, gate, at_s))
        prefer += (len(steps) - 1,)
        gate = ()
    return after, prefer


def _all_loads(shape: StoreShape, loads: Sequence[LayerLoad], steps: list[Step]) -> tuple[int, ...]:
    steps += [_load_step(shape, load.layer, load.runs, ()) for load in loads if load.runs]
    return (len(steps) - 1,) if len(steps) > 1 else ()


def _load_step(
    shape: StoreShape,
    layer: int,
    runs: tuple[SliceRun, ...],
    gate: tuple[int, ...],
    latest_s: float | None = None,
) -> Step:
    n_bytes = sum(shape.part_bytes(run.part) * run.count for run in runs)
    return Step("io", Load(layer, runs, n_bytes, count_reads(shape, runs)), gate, (), latest_s)
