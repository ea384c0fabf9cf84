"""Random but sensible devices, stores and budgets for planner tests."""

import numpy as np

from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.plan.plan import Budget
from pliant.plan.submodel.shape import StoreShape


def random_problem(
    rng: np.random.Generator, *, latency: bool = True, interference: bool = True
) -> tuple[StoreShape, CostTable, Budget, np.ndarray]:
    """Shape, costs, budget and importance, from IO-starved to compute-bound."""
    n, m = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    widths = tuple(sorted({int(w) for w in rng.integers(1, m + 1, 3)} | {m}))
    plane_bytes = int(rng.integers(100, 5000))
    depths = tuple(range(1, n + 1))
    shape = StoreShape(n, m, widths, plane_bytes, plane_bytes * int(rng.choice([16, 32])), depths)
    slice_s = float(rng.uniform(1e-4, 1e-3))
    slowdown = float(rng.uniform(1, 1.5)) if interference else 1.0
    layers = tuple(LayerCost(w, slice_s * w, slice_s * w * slowdown) for w in widths)
    disk = Link(
        float(rng.uniform(0, 2e-4)) if latency else 0.0, plane_bytes / slice_s * float(rng.uniform(0.5, 10))
    )
    overheads = rng.uniform(0, 1e-3, 3) * rng.integers(0, 2)
    io_slowdown = float(rng.uniform(1, 1.5)) if interference else 1.0
    costs = CostTable(layers, disk, *overheads.tolist(), io_slowdown)
    whole_s = n * m * slice_s
    held = int(rng.uniform(0, 8) * n * m * plane_bytes) * int(rng.integers(0, 2))
    budget = Budget(float(rng.uniform(0.2, 3)) * whole_s + 2e-3, held)
    return shape, costs, budget, rng.random((n, m))
