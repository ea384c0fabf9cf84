"""Slow this machine to a preset of bench/sti.py, and profile what came of it."""

from dataclasses import replace

import numpy as np

from pliant.ir.device import DeviceProfile, Dilation, LayerTime, dilate
from pliant.ir.link import Link
from pliant.ir.program import Compute, Load
from pliant.ir.reply import Reply
from pliant.plan.result import Budget, Plan
from pliant.plan.submodel.baseline import preload_model, standard_pipeline
from pliant.plan.submodel.shape import store_shape
from pliant.profile.line import timing
from pliant.run.submodel.details import ElasticDetails
from sti_rig import Device, Preset, Rig
from sti_runs import answers_of

LOWEST_TARGET_S = 0.040


def emulate(rig: Rig, profile: DeviceProfile, preset: Preset, n_runs: int) -> Device:
    """Dilate this machine until the preset's ratios hold and its least target is 40 ms.

    Then measure the slowed device itself, by runs of pilot plans: a core that has slept computes its next
    layer slower than one that has not, and slowing multiplies that. Factors and profile follow from there.
    """
    N, full_s = rig.spec.n_layers, LOWEST_TARGET_S / min(preset.targets)
    layer_bytes = rig.spec.n_heads * store_shape(rig.spec).full_bytes
    io = max(1.0, preset.io_ratio * full_s / N / profile.disk.seconds(layer_bytes))
    first = _dilation(rig, profile, preset, full_s, Dilation(1.0, io))
    guess = Device(preset, dilate(replace(profile, io_slowdown=1.0), first), full_s, rig.length)
    seen = _pilot(rig, guess, n_runs)
    by = _dilation(rig, seen, preset, full_s, first)
    return replace(guess, profile=_rescaled(seen, first, by))


def _dilation(rig: Rig, seen: DeviceProfile, preset: Preset, full_s: float, now: Dilation) -> Dilation:
    """By what to dilate so that layers take what the preset's do, when dilated by `now` they take `seen`."""
    N, M = rig.spec.n_layers, rig.spec.n_heads
    factors = {
        m: full_s / N * (1 if preset.is_flat else m / M)
        / seen.layer_time(rig.length, m).alone.median_s * now.factor(m)
        for m in seen.widths
    }  # fmt: skip
    base = max(1.0, min(factors.values()))
    nearest = [min(seen.widths, key=lambda w, m=m: abs(w - m)) for m in range(1, M + 1)]  # type: ignore[misc]
    return Dilation(base, now.io, tuple(max(1.0, factors[m] / base) for m in nearest))


def _rescaled(seen: DeviceProfile, now: Dilation, by: Dilation) -> DeviceProfile:
    """What was `seen` of a device dilated by `now`, when dilated by `by` instead."""
    layers = tuple(
        replace(s, alone=s.alone.times(more), with_io=s.with_io.times(more))
        for s in seen.layers
        for more in (by.factor(s.width) / now.factor(s.width),)
    )
    ends = by.compute / now.compute
    overheads = tuple(
        replace(o, tokenise=o.tokenise.times(ends), embed=o.embed.times(ends), head=o.head.times(ends))
        for o in seen.overheads
    )
    return replace(seen, layers=layers, overheads=overheads, dilation=by)


def _pilot(rig: Rig, device: Device, n_runs: int) -> DeviceProfile:
    """The profile of a slowed device from runs on it: every width, held and streamed."""
    alone: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    with_io: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    ends: dict[str, list[float]] = {"embed": [], "head": []}
    off_lanes: list[float] = []
    loads: list[tuple[int, int, float]] = []
    plans = _pilot_plans(rig, device)
    texts = rig.texts(1, seed=9) * n_runs
    for name, answers in answers_of(rig, device, plans, texts).items():
        p, m = plans[name], plans[name].width
        slower = device.profile.dilation.factor(m) / device.profile.dilation.compute
        for reply in (a.reply for a in answers):
            off_lanes.append(_off_lanes(reply))
            steps = reply.details.program.steps
            for span in reply.details.spans:
                match steps[span.step].work:
                    case Compute(kernel="layer"):
                        (alone if p.is_resident else with_io)[m].append(span.seconds)
                    case Compute(kernel=kernel):
                        ends[kernel].append(span.seconds / slower)
                    case Load(n_bytes=n_bytes, n_reads=n_reads):
                        loads.append((n_reads, n_bytes, span.seconds))
    disk, late = _line(loads)
    over = device.profile.overhead(rig.length)
    # What is on no lane stands with tokenising: both are paid once a run, whatever the submodel.
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
    """The line through the median load, and how many times longer the 95th percentile takes."""
    reads, n_bytes, took = (np.array(column, np.float64) for column in zip(*loads, strict=True))
    rows = np.stack([reads, n_bytes], axis=1) / took[:, None]
    latency_s, per_byte_s = np.maximum(np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)[0], 1e-12)
    ratio = took / (latency_s * reads + per_byte_s * n_bytes)
    disk = Link(float(latency_s), 1 / float(per_byte_s)).times(float(np.median(ratio)))
    return disk, max(1.0, float(np.quantile(ratio, 0.95) / np.median(ratio)))
