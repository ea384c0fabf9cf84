"""BERT-Large over 2 to 1000 devices like this one: predicted latency by mode, and the planner's time.

One core's stages are measured here. Programs are simulated step by step where that is fast enough, and by the
planner's closed form everywhere; both are shown where available.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from hepti_rig import random_model
from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.member.measure_member import measure_member
from pliant.ir.capability import Capability, ClusterCost, Interface, Links
from pliant.ir.cost import latency, simulate
from pliant.ir.partition import Mode, Partition
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.cost_2d import grid_seconds
from pliant.plan.partition.partition_cost import GridPlans, device_weight_bytes, seconds, to_plans
from pliant.plan.partition.partitioner import choose_partition
from pliant.plan.partition.problem import PartitionProblem, pose
from pliant.plan.split.split_program import split
from pliant.plan.split.stage_graphs import work_flops
from pliant.settings import cache_folder
from report import Report, options

TOKENS = 256
N_LAYERS = 24
RATE_BPS, RTT_S = 117.5e6, 3e-4
MOST_SIMULATED = 32
"""The most devices for simulation: an all-to-all among more has too many messages."""
MOST_CROWDED = 250
"""The most devices for which the 2D-tiled mode's closed form includes contention of exchanges, which needs
n^3 numbers.
"""
SHORT_BYTES = 300_000_000
MODES: tuple[Mode, ...] = ("ws", "1d", "2d")


def main() -> None:
    arguments = options(__doc__.splitlines()[0])
    report = Report(
        "hepti_scale",
        f"BERT-Large, {TOKENS} tokens, devices like one core of this machine, 940 Mbit/s, {RTT_S * 1e3:g} ms",
        arguments,
    )
    spec, device = _measured()
    counts = (2, 8, 16, 100, 1000) if arguments.quick else (2, 4, 8, 16, 32, 64, 100, 250, 500, 1000)
    report.table("equal shares, by mode", [_row(spec, device, n) for n in counts])
    checked = [n for n in counts if n <= (8 if arguments.quick else MOST_SIMULATED)]
    rows = [_checked(spec, device, n, mode) for n in checked for mode in MODES]
    report.table("closed form beside `simulate`, two layers", rows)
    for what, free_bytes in (("memory for all weights", 2 << 30), ("300 MB each", SHORT_BYTES)):
        able = replace(device, free_bytes=free_bytes)
        enough = [n for n in counts if n * free_bytes > 2e9]  # the model has 1.2 GB
        report.table(f"what the planner takes: {what}", [_chosen(spec, able, n) for n in enough])
    off = [abs(float(row["closed form / simulated"]) - 1) for row in rows]
    report.note(
        "Shares are equal in the first table: with more devices than heads or rows, some have none. "
        f"Above {MOST_CROWDED} devices the 2D-tiled mode's form ignores contention of exchanges; "
        "above 24 the planner solves a shortlist."
    )
    report.claim("hepti.scale", 100 * max(off), "closed form within 15 % of simulate (most)", max(off) < 0.15)
    report.finish()


def _measured() -> tuple[EncoderSpec, Capability]:
    """The measured capability of one core for a layer of BERT-Large, and the whole model's spec."""
    library = Library(host_isa(), cache_folder())
    with tempfile.TemporaryDirectory() as folder, ThreadPool(1, library) as pool:
        _, source = random_model("bert-large", 1, Path(folder))
        device = measure_member(source, TOKENS, library, pool, 2 << 30, seconds=3.0)
        return replace(source.spec, n_layers=N_LAYERS), device


def _cluster(device: Capability, n: int) -> tuple[dict[str, Capability], Links]:
    names = [f"d{i}" for i in range(n)]
    return dict.fromkeys(names, device), Links(dict.fromkeys(names, Interface(RATE_BPS, RATE_BPS)), RTT_S)


def _equal(spec: EncoderSpec, device: Capability, n: int, mode: Mode) -> tuple[PartitionProblem, Partition]:
    devices, links = _cluster(device, n)
    partition = make_chooser(mode, "equal")(spec, TOKENS, devices, links, "d0")
    return pose(spec, TOKENS, devices, links, "d0"), partition


def _row(spec: EncoderSpec, device: Capability, n: int) -> dict[str, object]:
    start_s = time.perf_counter()
    ms, megabytes = {}, {}
    for mode in MODES:
        p, partition = _equal(spec, device, n, mode)
        ms[mode] = 1e3 * _closed_s(p, partition)
        megabytes[mode] = float(device_weight_bytes(p, to_plans(p, partition)).max()) / 1e6
    return {
        "devices": n,
        **{f"{mode} [ms]": value for mode, value in ms.items()},
        **{f"{mode}, most weights [MB]": value for mode, value in megabytes.items()},
        "quickest": min(ms, key=lambda mode: ms[mode]),
        "computed in [s]": time.perf_counter() - start_s,
    }


def _closed_s(p: PartitionProblem, partition: Partition) -> float:
    plan = to_plans(p, partition)
    if isinstance(plan, GridPlans) and p.n > MOST_CROWDED:
        return float(grid_seconds(p, plan, 0)[0])
    return float(seconds(_unlimited(p), plan)[0])


def _unlimited(p: PartitionProblem) -> PartitionProblem:
    """The problem without memory limits, to predict a mode's time even if it does not fit."""
    return replace(p, memory=np.full(p.n, np.inf))


def _checked(spec: EncoderSpec, device: Capability, n: int, mode: Mode) -> dict[str, object]:
    spec = replace(spec, n_layers=2)
    devices, links = _cluster(device, n)
    p, partition = _equal(spec, device, n, mode)
    program, cost = split(spec, partition), ClusterCost(devices, links, work_flops(spec, partition))
    start_s = time.perf_counter()
    simulated_s = latency(simulate(program, cost))
    return {
        "devices": n,
        "mode": mode,
        "steps": len(program.steps),
        "simulated [ms]": 1e3 * simulated_s,
        "closed form / simulated": _closed_s(p, partition) / simulated_s,
        "simulated in [s]": time.perf_counter() - start_s,
    }


def _chosen(spec: EncoderSpec, device: Capability, n: int) -> dict[str, object]:
    devices, links = _cluster(device, n)
    paper = choose_partition(spec, TOKENS, devices, links, "d0")
    judged = choose_partition(spec, TOKENS, devices, links, "d0", rule="cost")
    return {
        "devices": n,
        "paper's rule": paper.mode,
        "on": len(paper.partition.participants),
        "[ms]": 1e3 * paper.seconds,
        "cost model": judged.mode,
        "on ": len(judged.partition.participants),
        "[ms] ": 1e3 * judged.seconds,
        "the rule costs [%]": 100 * (paper.seconds / judged.seconds - 1),
    }


if __name__ == "__main__":
    main()
