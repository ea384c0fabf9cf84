"""Measure this device on one model, with the stages that it would run in a cluster.

Stages of one layer are run in shares from the smallest to the full layer, in all three modes. Each round
runs all of them, so weights come from memory rather than cache, as in a run.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pliant.cluster.member.shard import ModelShards
from pliant.ir.capability import Capability, StageTimes
from pliant.ir.partition import DeviceGrid, Mode, Partition, Share
from pliant.ir.program import Compute, Exchange
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import HEAD, INPUT, layer_segment
from pliant.plan.split.stage_graphs import end_flops, weight_bytes, work_flops
from pliant.profile.clock_rate import calibrated_frequency
from pliant.profile.disk_fit import timing
from pliant.profile.timing_rounds import Clock, TimedFunction, time_in_rounds
from pliant.run.emulated_device import EmulatedDevice
from pliant.system import waited_s

_MODES: tuple[Mode, ...] = ("ws", "1d")
_HERE, _THERE = "here", ("there0", "there1", "there2")
_MIN_REPEATS, _MAX_REPEATS = 2, 9
_MEMORY_SHARE = 4
_NAP_S = 0.02


def measure_member(
    source: EncoderSource,
    tokens: int,
    library: Library,
    pool: ThreadPool,
    free_bytes: int,
    *,
    ends: ModelShards | None = None,
    emulated: EmulatedDevice | None = None,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
    waited: Callable[[], Mapping[int, float]] = waited_s,
) -> Capability:
    """Measure rho, f, s and a curve for each kind of stage at `tokens` rows (Hepti 4.1, Table 1a).

    Measures for about `seconds`, after two warm-up rounds, and each stage at least twice; reading, packing
    and compiling one layer come on top. A device with too little memory for the model in float32 is
    measured on coded matrices, if the model has codes. Shares whose weights need more than a quarter of
    `free_bytes` are skipped, except the smallest share. The measured times exclude the dilation of an
    `emulated` device, which is stored separately; its core sleeps between stages, as in a run.
    `clock` and `waited` are those of `time_in_rounds`. On a primary, input and head are compiled into
    `ends`, which keeps them, and measured too. Raises InputError for a length that the model does not
    support.
    """
    shards = ModelShards(_HERE, source, library, pool)
    stages = _stages(source.spec, tokens, shards, free_bytes)
    every = [*stages, *(() if ends is None else _ends(ends, tokens))]
    emulated = emulated or EmulatedDevice()
    dilation = emulated.dilation
    time_in_rounds(
        [stage.timed for stage in every],
        seconds,
        least=_MIN_REPEATS,
        most=_MAX_REPEATS,
        clock=clock,
        waited=waited,
        rest=lambda took_s: emulated.rest(took_s, dilation.compute, _NAP_S),
    )
    points: dict[str, dict[float, list[float]]] = {}
    for stage in every:
        points.setdefault(stage.kind, {}).setdefault(stage.flops, []).extend(stage.timed.samples_s)
    curves = [
        StageTimes(kind, tuple((flops, timing(samples).median_s) for flops, samples in sorted(sizes.items())))
        for kind, sizes in points.items()
    ]
    largest = max(stage.flops for stage in stages)
    big = [stage for stage in stages if stage.flops > largest / 4]
    frequency_Hz = calibrated_frequency(library)
    flop_s = sum(timing(one.timed.samples_s).median_s for one in big) / sum(one.flops for one in big)
    return Capability(
        cycles_per_flop=flop_s * frequency_Hz,
        frequency_Hz=frequency_Hz,
        free_bytes=free_bytes,
        call_s=min(timing(stage.timed.samples_s).median_s for stage in stages),
        curves=tuple(curves),
        dilation=dilation,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of one share."""

    kind: str
    flops: float
    timed: TimedFunction


def _stages(spec: EncoderSpec, tokens: int, shards: ModelShards, free_bytes: int) -> list[_Stage]:
    """Return the stages of the last layer, in every share that fits in memory."""
    layer = spec.n_layers - 1
    numbers = np.random.default_rng(0)
    stages: list[_Stage] = []
    bits = _bits(spec, tokens, free_bytes)
    for partition in (replace(one, bits=bits) for one in _partitions(spec, tokens)):
        need = weight_bytes(spec, partition)[_HERE] // spec.n_layers
        if stages and _MEMORY_SHARE * need > free_bytes:
            continue
        shard = shards.prepare(partition, layer)
        shard.state(layer)[...] = numbers.standard_normal((tokens, spec.hidden), np.float32)
        flops = work_flops(spec, partition)
        for step in layer_segment(spec, partition, layer).steps:
            match step.work:
                case Exchange(dst=dst) if dst == _HERE:
                    into = shard.view(step.work)
                    into[...] = numbers.standard_normal(into.shape, np.float32)
                case Compute(kernel, device=device) as work if device == _HERE and flops(work) > 0:
                    timed = TimedFunction(lambda i, shard=shard, work=work: shard.compute(0, work))  # type: ignore[misc]
                    stages.append(_Stage(kernel, flops(work), timed))
                case _:
                    pass
    return stages


def _ends(shards: ModelShards, tokens: int) -> Iterator[_Stage]:
    """Yield the input and the head, with zeros as input."""
    source, device = shards.source, shards.device
    alone = Partition("ws", device, (Share(device, source.spec.n_heads, tokens),), tokens)
    shard = shards.prepare(alone, source.spec.n_layers)
    inputs = source.input(tokens)
    feeds = {x: np.zeros(inputs.types[x].shape, inputs.types[x].numpy) for x in inputs.inputs}
    shard.begin([PreparedInput(tokens, feeds)])
    for kernel in (INPUT, HEAD):
        work = Compute(kernel, rows=tokens, device=device)
        timed = TimedFunction(lambda i, work=work: shard.compute(0, work))  # type: ignore[misc]
        yield _Stage(kernel, end_flops(source.spec, tokens), timed)


def _bits(spec: EncoderSpec, tokens: int, free_bytes: int) -> tuple[int, ...]:
    """Return the bits per layer: a device that cannot hold the model in float32 holds its share in codes."""
    alone = Partition("ws", _HERE, (Share(_HERE, spec.n_heads, tokens),), tokens)
    is_short = weight_bytes(spec, alone)[_HERE] > free_bytes
    return () if spec.coded is None or not is_short else (spec.coded.bits,) * spec.n_layers


def _partitions(spec: EncoderSpec, tokens: int) -> Iterator[Partition]:
    """Yield partitions with increasing shares of this device; others take the rest and lead."""
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
    """Return a partition over four devices in two groups of two."""
    devices = (_HERE, *_THERE)
    cuts = {what: _quarters(n) for what, n in sizes.items()}
    shares = tuple(Share(d, **{what: cut[i] for what, cut in cuts.items()}) for i, d in enumerate(devices))
    halves = (spec.inner - spec.inner // 2, spec.inner // 2)
    return Partition("2d", _THERE[0], shares, tokens, DeviceGrid((devices[:2], devices[2:]), halves, halves))


def _quarters(n: int) -> list[int]:
    return [n // 4 + (i < n % 4) for i in range(4)]
