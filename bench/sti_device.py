"""Slow this machine to a preset of bench/sti.py, and profile the result."""

from dataclasses import replace

import numpy as np

from pliant.ir.device import DeviceProfile, LayerTime
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Compute, Load
from pliant.ir.reply import Reply
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.baseline import preload_model, standard_pipeline
from pliant.plan.submodel.shape import store_shape
from pliant.profile.disk_fit import timing
from pliant.run.submodel.elastic_details import ElasticDetails
from sti_rig import Device, Preset, Rig
from sti_runs import answers_of

LOWEST_TARGET_S = 0.040


def emulate(rig: Rig, profile: DeviceProfile, preset: Preset, n_runs: int) -> Device:
    """Dilate this machine until the preset's ratios hold and its least target is 40 ms.

    Then measure the slowed device itself, by runs of pilot plans: a core computes the next layer slower after
    a sleep, and the dilation multiplies that. Factors and profile are adjusted by these runs.
    """
    N, full_s = rig.spec.n_layers, LOWEST_TARGET_S / min(preset.targets)
    layer_bytes = rig.spec.n_heads * store_shape(rig.spec).full_bytes
    io = max(1.0, preset.io_ratio * full_s / N / profile.disk.seconds(layer_bytes))
    first = replace(profile, io_slowdown=1.0, dilation=_dilation(rig, profile, preset, full_s, io))
    guess = Device(preset, first, full_s, rig.length)
    seen = _pilot(rig, guess, n_runs)
    return replace(guess, profile=replace(seen, dilation=_dilation(rig, seen, preset, full_s, io)))


def _dilation(rig: Rig, seen: DeviceProfile, preset: Preset, full_s: float, io: float) -> Dilation:
    """The dilation at which layers take the preset's times."""
    N, M = rig.spec.n_layers, rig.spec.n_heads
    factors = {
        m: full_s / N * (1 if preset.is_flat else m / M) / seen.layer_time(rig.length, m).alone.median_s
        for m in seen.widths
    }
    base = max(1.0, min(factors.values()))
    nearest = [min(seen.widths, key=lambda w, m=m: abs(w - m)) for m in range(1, M + 1)]  # type: ignore[misc]
    return Dilation(base, io, tuple(max(1.0, factors[m] / base) for m in nearest))


def _pilot(rig: Rig, device: Device, n_runs: int) -> DeviceProfile:
    """The profile of a slowed device from runs on it, without its dilation: every width, preloaded and
    streamed.
    """
    alone: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    with_io: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    ends: dict[str, list[float]] = {"embed": [], "head": []}
    off_lanes: list[float] = []
    loads: list[tuple[int, int, float]] = []
    plans = _pilot_plans(rig, device)
    texts = rig.texts(1, seed=9) * n_runs
    for name, answers in answers_of(rig, device, plans, texts).items():
        p, m = plans[name], plans[name].width
        slower = device.profile.dilation.at_width(m)
        for reply in (a.reply for a in answers):
            off_lanes.append(_off_lanes(reply) / device.profile.dilation.compute)
            steps = reply.details.program.steps
            for span in reply.details.spans:
                match steps[span.step].work:
                    case Compute(kernel="layer"):
                        (alone if p.is_resident else with_io)[m].append(span.seconds / slower.compute)
                    case Compute(kernel=kernel):
                        ends[kernel].append(span.seconds / slower.compute)
                    case Load(n_bytes=n_bytes, n_reads=n_reads):
                        loads.append((n_reads, n_bytes, span.seconds / slower.io))
    disk, late = _line(loads)
    over = device.profile.overhead(rig.length)
    # Time outside the lanes is added to tokenising: both occur once per run for every submodel.
    over = replace(over, tokenise=timing(off_lanes), embed=timing(ends["embed"]), head=timing(ends["head"]))
    return replace(
        device.profile,
        reads=(),
        io_slowdown=1.0,  # the loads above were measured while compute ran
        disk=disk,
        disk_p95=disk.times(late),
        layers=tuple(
            LayerTime(rig.length, m, timing(alone[m]), timing(with_io[m])) for m in device.profile.widths
        ),
        overheads=(over,),
    )


def _pilot_plans(rig: Rig, device: Device) -> dict[str, Plan]:
    shape, costs = store_shape(rig.spec), device.costs()
    plans = {}
    for m in device.profile.widths:
        job = replace(shape, widths=(m,)), costs, Budget(1e3, 0), np.ones((shape.n_layers, shape.n_slices))
        plans[f"held {m}"] = preload_model(*job, 6)
        plans[f"6 bits {m}"] = standard_pipeline(*job, 6)
        plans[f"2 bits {m}"] = standard_pipeline(*job, 2)
    return plans


def _off_lanes(reply: Reply[ElasticDetails]) -> float:
    """Seconds of a run before its first step and after its last: tokenising and Python."""
    ran = reply.details
    ends_s = [s.end_s for s in ran.spans if isinstance(ran.program.steps[s.step].work, Compute)]
    return max(0.0, reply.seconds - max(ends_s))


def _line(loads: list[tuple[int, int, float]]) -> tuple[Link, float]:
    """The line through the median load, and the ratio of the 95th percentile to it."""
    reads, n_bytes, took = (np.array(column, np.float64) for column in zip(*loads, strict=True))
    rows = np.stack([reads, n_bytes], axis=1) / took[:, None]
    latency_s, per_byte_s = np.maximum(np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)[0], 1e-12)
    ratio = took / (latency_s * reads + per_byte_s * n_bytes)
    disk = Link(float(latency_s), 1 / float(per_byte_s)).times(float(np.median(ratio)))
    return disk, max(1.0, float(np.quantile(ratio, 0.95) / np.median(ratio)))
