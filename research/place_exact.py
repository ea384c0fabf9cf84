"""The optimal arena, as an integer program (HiGHS): a reference for small graphs, not a pass."""

from collections.abc import Sequence

import highspy

from pliant.compiler.executable.place_tensors import Lifetime, Placement
from pliant.compiler.layout.highs_solver import HighsSolver
from pliant.errors import GraphError
from pliant.ir.executable import ALIGNMENT


def place_exactly(tensors: Sequence[Lifetime], time_limit_s: float = 20.0) -> Placement:
    """Offsets with the smallest arena, in units of ALIGNMENT; tensors alive together do not overlap.

    Raises GraphError when the optimum is not proved within the time limit.
    """
    sizes = [-(-t.n_bytes // ALIGNMENT) for t in tensors]
    total = sum(sizes)
    solver = HighsSolver()
    solver.setOptionValue("time_limit", time_limit_s)
    whole = highspy.HighsVarType.kInteger
    end = solver.addVariable(0.0, total, 1.0)
    offsets = [solver.addVariable(0.0, total, 0.0) for _ in tensors]
    for i, (a, n) in enumerate(zip(tensors, sizes, strict=True)):
        solver.addConstr(offsets[i] + n <= end)
        for j in range(i):
            if n and sizes[j] and a.overlaps(tensors[j]):
                below = solver.addVariable(0.0, 1.0, 0.0, whole)
                solver.addConstr(offsets[i] + n <= offsets[j] + total * (1 - below))
                solver.addConstr(offsets[j] + sizes[j] <= offsets[i] + total * below)
    solver.minimize()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise GraphError(f"the best of {len(tensors)} tensors' places was not found in {time_limit_s:g} s.")
    values = solver.getSolution().col_value
    placed = tuple(ALIGNMENT * round(values[offset.index]) for offset in offsets)
    last = max((o + t.n_bytes for o, t in zip(placed, tensors, strict=True)), default=0)
    return Placement(placed, last)
