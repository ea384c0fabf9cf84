"""Every system of bench/sti.py as plans, each chosen by measured accuracy and by the paper's rule (most
slices).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import CostTable
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.submodel.plan_options import OURS, PlanOptions
from pliant.plan.submodel.search import plan as make_plan
from pliant.plan.submodel.shape import StoreShape, store_shape
from sti_rig import Device, Quantizer, Rig

PRELOAD_BYTES = 200_000
MARGIN = 0.05  # fraction of the target for time outside the lanes: Python, wake-ups
ON_DEMAND = ("Load&Exec", "StdPL-full", "StdPL-2", "StdPL-6")
OURS_NAMES = ("Ours-0MB", "Ours")
MOST_SLICES = ", most slices"  # the paper's rule


@dataclass(frozen=True, slots=True)
class Cell:
    """One system on one device at one target."""

    system: str
    device: Device
    share: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the evaluation: examples, cold runs of each system, random orders, targets of each
    device.
    """

    n_dev: int | None
    n_ablate: int
    n_grid: int
    n_runs: int
    n_random: int
    n_targets: int
    is_quick: bool


def cells(rig: Rig, device: Device, importance: np.ndarray, size: Size) -> Iterator[Cell]:
    """Every system at every target of the device's preset; a system that cannot meet a target runs its
    smallest submodel.
    """
    for share in device.preset.targets[-size.n_targets :]:
        for name, p in _systems(rig, device, share, importance):
            yield Cell(name, device, share, p)


def _systems(rig: Rig, device: Device, share: float, importance: np.ndarray) -> Iterator[tuple[str, Plan]]:
    job = job_of(rig, device, share, 0, importance)
    expected, grid = device.costs(is_median=True), rig.grid
    for rule, basis in (("", OURS), (MOST_SLICES, replace(OURS, choose="size"))):
        how = replace(basis, best_effort=True, margin=MARGIN)
        yield f"Load&Exec{rule}", load_and_execute(*job, how, expected=expected, accuracy=grid)
        for name, bits in (("full", FULL_BITS), ("2", 2), ("6", 6)):
            p = standard_pipeline(*job, bits, how, expected=expected, accuracy=grid)
            yield f"StdPL-{name}{rule}", p
        for name, bits in (("full", FULL_BITS), ("6", 6)):
            p = preload_model(*job, bits, how, expected=expected, accuracy=grid)
            yield f"Preload-{name}{rule}", p
        yield f"Ours-0MB{rule}", ours(rig, device, share, 0, importance, basis)
        yield f"Ours{rule}", ours(rig, device, share, PRELOAD_BYTES, importance, basis)
    no_slack = replace(OURS, slack="none")
    yield "Ours, no slack", ours(rig, device, share, PRELOAD_BYTES, importance, no_slack)


def ours(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, how: PlanOptions,
    io_slower: float = 1.0,
) -> Plan:  # fmt: skip
    """Our plan under `share` of the device's full compute and `preload` bytes of buffer."""
    how = replace(how, best_effort=True, margin=MARGIN)
    job = job_of(rig, device, share, preload, importance, io_slower)
    return make_plan(*job, how, expected=device.costs(is_median=True, io_slower=io_slower), accuracy=rig.grid)


def job_of(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, io_slower: float = 1.0
) -> tuple[StoreShape, CostTable, Budget, np.ndarray]:
    budget = Budget(share * device.full_s, preload)
    return store_shape(rig.spec), device.costs(io_slower=io_slower), budget, importance


def brief(rig: Rig, p: Plan, quantizer: Quantizer) -> str:
    right = rig.predicted(p.layers, p.width, p.bits, quantizer) == rig.labels
    return f"{100 * right.mean():.2f} ({p.n}x{p.width}, {np.mean(p.bits):.1f} bits)"
