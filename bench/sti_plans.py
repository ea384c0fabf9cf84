"""Every system of bench/sti.py as plans: ours, by measured accuracy and by size, and its rivals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pliant.ir.cost import Budget
from pliant.plan.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.options import OURS, PlanOptions
from pliant.plan.result import Plan
from pliant.plan.search import plan as make_plan
from pliant.plan.shape import FULL_BITS, store_shape
from sti_rig import Device, Quantizer, Rig

PRELOAD_BYTES = 200_000
MARGIN = 0.05  # of the target, for what is on no lane: Python, wake-ups
ON_DEMAND = ("Load&Exec", "StdPL-full", "StdPL-2", "StdPL-6")
OURS_NAMES = ("Ours-0MB", "Ours")
BY_SIZE = replace(OURS, choose="size")  # the paper's rule: most slices


@dataclass(frozen=True, slots=True)
class Cell:
    """One system on one device at one target."""

    system: str
    device: Device
    share: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: everything, or what fits into a minute."""

    n_dev: int | None
    n_ablate: int
    n_grid: int
    n_runs: int
    n_baseline_runs: int
    n_anytime_runs: int
    n_random: int
    is_quick: bool


def cells(rig: Rig, device: Device, importance: dict[str, np.ndarray], size: Size) -> Iterator[Cell]:
    """Every system at every target of the device's preset; what cannot meet a target runs its smallest."""
    how = replace(OURS, best_effort=True, margin=MARGIN)
    medians = device.costs(is_median=True)
    table = importance["accuracy"]
    for share in device.preset.targets[: 1 if size.is_quick else 3]:
        job = job_of(rig, device, share, 0, table)
        systems: dict[str, Callable[[], Plan]] = {
            "Load&Exec": lambda j=job: load_and_execute(*j, how, expected=medians),  # type: ignore[misc]
            **{
                f"StdPL-{name}": lambda j=job, b=bits: standard_pipeline(*j, b, how, expected=medians)  # type: ignore[misc]
                for name, bits in (("full", FULL_BITS), ("2", 2), ("6", 6))
            },
            **{
                f"Preload-{name}": lambda j=job, b=bits: preload_model(*j, b, how, expected=medians)  # type: ignore[misc]
                for name, bits in (("full", FULL_BITS), ("6", 6))
            },
            "Ours-0MB": lambda s=share: ours(rig, device, s, 0, table, OURS),  # type: ignore[misc]
            "Ours": lambda s=share: ours(rig, device, s, PRELOAD_BYTES, table, OURS),  # type: ignore[misc]
            "Ours, most slices": lambda s=share: ours(  # type: ignore[misc]
                rig, device, s, PRELOAD_BYTES, table, BY_SIZE
            ),
            "Ours-0MB, most slices": lambda s=share: ours(rig, device, s, 0, table, BY_SIZE),  # type: ignore[misc]
            "Ours, no slack": lambda s=share: ours(  # type: ignore[misc]
                rig, device, s, PRELOAD_BYTES, table, replace(OURS, slack="none")
            ),
        }
        for name, planned in systems.items():
            yield Cell(name, device, share, planned())


def ours(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, how: PlanOptions,
    io_slower: float = 1.0,
) -> Plan:  # fmt: skip
    how = replace(how, best_effort=True, margin=MARGIN)
    job = job_of(rig, device, share, preload, importance, io_slower)
    return make_plan(*job, how, expected=device.costs(is_median=True, io_slower=io_slower), accuracy=rig.grid)  # type: ignore[arg-type]


def job_of(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, io_slower: float = 1.0
) -> tuple[object, ...]:
    budget = Budget(share * device.full_s, preload)
    return store_shape(rig.spec), device.costs(io_slower=io_slower), budget, importance


def brief(rig: Rig, p: Plan, quantizer: Quantizer) -> str:
    return f"{100 * rig.right(p, quantizer).mean():.2f} ({p.n}x{p.width}, {np.mean(p.bits):.1f} bits)"
