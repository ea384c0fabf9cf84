"""Slow this machine to a preset of bench/sti.py, and profile what came of it."""

from dataclasses import replace

import numpy as np

from pliant.ir.cost import Budget, Disk
from pliant.ir.device import DeviceProfile, Dilation, LayerTime
from pliant.ir.program import Compute, Load
from pliant.plan.baseline import preload_model, standard_pipeline
from pliant.plan.shape import store_shape
from pliant.profile.line import timing
from sti_rig import Device, Preset, Rig
from sti_runs import replies_of

LOWEST_TARGET_S = 0.040


def emulate(rig: Rig, profile: DeviceProfile, preset: Preset, n_runs: int) -> Device:
    """Slow each width's layer and the disk until the preset's ratios hold and its least target is 40 ms.

    Then measure the slowed device itself, by runs of pilot plans: a core that has slept computes its next
    layer slower than one that has not, and slowing multiplies that. Factors and profile follow from there.
    """
    N, M = rig.spec.n_layers, rig.spec.n_heads
    layer_bytes = M * store_shape(rig.spec).full_bytes
    layer_s = LOWEST_TARGET_S / min(preset.targets) / N
    disk, wanted_s = profile.disk, preset.io_ratio * layer_s
    bandwidth = max(1.0, (wanted_s - disk.latency_s) * disk.bandwidth_Bps / layer_bytes)
    slowed = replace(disk, bandwidth_Bps=disk.bandwidth_Bps / bandwidth)
    bare = replace(profile, disk=slowed, disk_p95=slowed, io_slowdown=1.0)
    first = _dilated(rig, bare, bare, Dilation(), preset, disk, bandwidth)
    seen = _pilot(rig, first, n_runs)
    return _dilated(rig, seen, bare, first.profile.dilation, preset, disk, bandwidth)


def _dilated(
    rig: Rig,
    seen: DeviceProfile,
    bare: DeviceProfile,
    by: Dilation,
    preset: Preset,
    disk: Disk,
    bandwidth: float,
) -> Device:
    """The device of `preset`, when slowed as `by` says it showed the times `seen`."""
    N, M = rig.spec.n_layers, rig.spec.n_heads
    full_s = LOWEST_TARGET_S / min(preset.targets)
    wanted = {m: full_s / N * (1 if preset.is_flat else m / M) for m in bare.widths}
    more = {m: wanted[m] / seen.layer_time(rig.length, m).alone.median_s for m in bare.widths}
    factors = {m: more[m] * by.factor(m) for m in bare.widths}
    base = min(factors.values())
    nearest = [min(bare.widths, key=lambda w, m=m: abs(w - m)) for m in range(1, M + 1)]  # type: ignore[misc]
    dilation = Dilation(max(1.0, base), 1.0, tuple(max(1.0, factors[m] / base) for m in nearest))
    ends = dilation.compute / by.compute
    profile = replace(
        seen,
        layers=tuple(
            replace(s, alone=s.alone.times(more[s.width]), with_io=s.with_io.times(more[s.width]))
            for s in seen.layers
        ),
        overheads=tuple(
            replace(o, embed=o.embed.times(ends), head=o.head.times(ends)) for o in seen.overheads
        ),
        dilation=dilation,
    )
    return Device(preset, profile, full_s, rig.length, disk, bandwidth)


def _pilot(rig: Rig, device: Device, n_runs: int) -> DeviceProfile:
    """The profile of a slowed device from the spans of runs on it: every width, held and streamed."""
    alone: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    with_io: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    ends: dict[str, list[float]] = {"embed": [], "head": []}
    loads: list[tuple[int, int, float]] = []
    text = rig.texts(1, seed=9)[0]
    shape, costs = store_shape(rig.spec), device.costs()
    for m in device.profile.widths:
        job = (
            replace(shape, widths=(m,)), costs, Budget(1e3, 0), np.ones((shape.n_layers, shape.n_slices))
        )  # fmt: skip
        for p in (preload_model(*job, 6), standard_pipeline(*job, 6), standard_pipeline(*job, 2)):
            for reply in replies_of(rig, device, p, [text] * (n_runs + 1))[1:]:
                steps = [step for segment in reply.program.segments for step in segment.steps]
                slower = device.profile.dilation.factor(m) / device.profile.dilation.compute
                for span in reply.spans:
                    match steps[span.step].work:
                        case Compute(kernel="layer"):
                            (alone if p.is_resident else with_io)[m].append(span.seconds)
                        case Compute(kernel=kernel):
                            ends[kernel].append(span.seconds / slower)
                        case Load(n_bytes=n_bytes, n_reads=n_reads):
                            loads.append((n_reads, n_bytes, span.seconds))
    reads, n_bytes, took = (np.array(column, np.float64) for column in zip(*loads, strict=True))
    rows = np.stack([reads, n_bytes], axis=1) / took[:, None]
    latency_s, per_byte_s = np.maximum(np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)[0], 1e-12)
    ratio = took / (latency_s * reads + per_byte_s * n_bytes)
    disk = Disk(float(latency_s), 1 / float(per_byte_s)).times(float(np.median(ratio)))
    over = device.profile.overhead(rig.length)
    return replace(
        device.profile,
        reads=(),
        io_slowdown=1.0,  # the loads above were measured while compute ran
        disk=disk,
        disk_p95=disk.times(max(1.0, float(np.quantile(ratio, 0.95) / np.median(ratio)))),
        layers=tuple(
            LayerTime(rig.length, m, timing(alone[m]), timing([*with_io[m]])) for m in device.profile.widths
        ),
        overheads=(replace(over, embed=timing(ends["embed"]), head=timing(ends["head"])),),
    )
