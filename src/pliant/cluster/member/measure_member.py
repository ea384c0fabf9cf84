"""Measure this device on one model, with the stages that it would run in a cluster.

Stages of one layer are run in shares from the smallest to the whole, in all three modes. Every round visits
each of them once: a device that drifts drifts for all alike, and weights come from memory, as in a run.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from pliant.cluster.member.shard import Shard, Shards
from pliant.ir.partition import Grid, Mode, Partition, Share
from pliant.ir.program import Compute, Exchange
from pliant.ir.topology import Capability, StageTimes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import Pool
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split import layer_segment
from pliant.plan.split.stage_graphs import weight_bytes, work_flops
from pliant.profile.cycles import calibrated_frequency

Clock = Callable[[], float]

_MODES: tuple[Mode, ...] = ("ws", "1d")
_HERE, _THERE = "here", ("there0", "there1", "there2")
_MIN_ROUNDS, _ROUNDS = 2, 9
_SHORT_S = 3e-3
_MEMORY_SHARE = 4
_NAP_S = 0.02


def measure_device(
    source: EncoderSource,
    tokens: int,
    library: Library,
    pool: Pool,
    free_bytes: int,
    *,
    dilation: float = 1.0,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Capability:
    """rho, f, s and a curve for each kind of stage at `tokens` rows (Hepti 4.1, Table 1a).

    Measures for about `seconds`, after a round that is not counted, and two rounds at least; reading, packing
    and compiling one layer come on top. Shares whose weights take more than a quarter of `free_bytes` are
    left out, all but the smallest. Everything is measured as it is and `dilation` only noted; where there is
    one, the core sleeps between stages as it will in a run. Raises InputError for a length the model has not.
    """
    shards = Shards(_HERE, source, library, pool)
    cells = _cells(source.spec, tokens, shards, free_bytes)
    _visit(cells, seconds, dilation, clock, sleep)
    points: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        points.setdefault(cell.work.kernel, {}).setdefault(cell.flops, []).extend(cell.samples_s)
    curves = [
        StageTimes(kind, tuple((flops, median(samples)) for flops, samples in sorted(sizes.items())))
        for kind, sizes in points.items()
    ]
    largest = max(cell.flops for cell in cells)
    big = [cell for cell in cells if cell.flops > largest / 4]
    frequency_Hz = calibrated_frequency(library)
    flop_s = sum(median(cell.samples_s) for cell in big) / sum(cell.flops for cell in big)
    return Capability(
        cycles_per_flop=flop_s * frequency_Hz,
        frequency_Hz=frequency_Hz,
        free_bytes=free_bytes,
        call_s=min(seconds for curve in curves for _, seconds in curve.points),
        curves=tuple(curves),
        dilation=dilation,
    )


@dataclass(slots=True)
class _Cell:
    """One stage of one share, and how long it took each time."""

    shard: Shard
    work: Compute
    flops: float
    samples_s: list[float] = field(default_factory=list)


def _visit(
    cells: list[_Cell], seconds: float, dilation: float, clock: Clock, sleep: Callable[[float], None]
) -> None:
    """Run all cells round by round; the first round wakes caches, pages and threads.

    Once the time is spent, only short stages go on: they cost little and vary most.
    """
    spent_s = 0.0
    for number in range(_ROUNDS + 1):
        is_over = number > _MIN_ROUNDS and spent_s * (number + 1) / number > seconds
        for cell in cells:
            if is_over and cell.samples_s[-1] > _SHORT_S:
                continue
            start_s = clock()
            cell.shard.compute(0, cell.work)
            took_s = clock() - start_s
            spent_s += took_s
            if number:
                cell.samples_s.append(max(took_s, 1e-9))
            if dilation > 1:
                sleep(min((dilation - 1) * took_s, _NAP_S))


def _cells(spec: EncoderSpec, tokens: int, shards: Shards, free_bytes: int) -> list[_Cell]:
    """The stages of the last layer, in every share that fits the memory."""
    layer = spec.n_layers - 1
    numbers = np.random.default_rng(0)
    cells: list[_Cell] = []
    for partition in _partitions(spec, tokens):
        need = weight_bytes(spec, partition)[_HERE] // spec.n_layers
        if cells and _MEMORY_SHARE * need > free_bytes:
            continue
        shard = shards.prepare(partition, layer)
        shard.state(layer)[...] = numbers.standard_normal((tokens, spec.hidden), np.float32)
        flops = work_flops(spec, partition)
        for step in layer_segment(spec, partition, layer).steps:
            match step.work:
                case Exchange(dst=dst) if dst == _HERE:
                    into = shard.view(step.work)
                    into[...] = numbers.standard_normal(into.shape, np.float32)
                case Compute(device=device) if device == _HERE and flops(step.work) > 0:
                    cells.append(_Cell(shard, step.work, flops(step.work)))
                case _:
                    pass
    return cells


def _partitions(spec: EncoderSpec, tokens: int) -> Iterator[Partition]:
    """This device beside others that take the rest and lead, from the smallest share on."""
    sizes = {"heads": spec.n_heads, "rows": tokens, "columns": spec.ffn}
    seen = set()
    for fraction in (0.0, 0.125, 0.5, 1.0):
        own = {what: max(1, round(fraction * n)) for what, n in sizes.items()}
        for mode in _MODES:
            taken = own if mode == "1d" else own | {"columns": 0}
            whole = sizes if mode == "1d" else sizes | {"columns": 0}
            rest = {what: whole[what] - n for what, n in taken.items()}
            key = (mode, *taken.values())
            if key not in seen:
                seen.add(key)
                shares = (Share(_HERE, **taken), Share(_THERE[0], **rest))
                yield Partition(mode, _THERE[0], shares, tokens)
    yield _grid(spec, sizes, tokens)


def _grid(spec: EncoderSpec, sizes: Mapping[str, int], tokens: int) -> Partition:
    """Four devices in two groups of two."""
    devices = (_HERE, *_THERE)
    cuts = {what: _quarters(n) for what, n in sizes.items()}
    shares = tuple(Share(d, **{what: cut[i] for what, cut in cuts.items()}) for i, d in enumerate(devices))
    halves = (spec.inner - spec.inner // 2, spec.inner // 2)
    return Partition("2d", _THERE[0], shares, tokens, Grid((devices[:2], devices[2:]), halves, halves))


def _quarters(n: int) -> list[int]:
    return [n // 4 + (i < n % 4) for i in range(4)]
