"""Linear and integer programs from arrays, solved by HiGHS."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from pliant.arrays import Float
from pliant.compiler.layout.highs_solver import HighsSolver

INFINITY = highspy.kHighsInf
FEASIBLE = 2
Vector = np.ndarray
Indices = np.ndarray


@dataclass(frozen=True, slots=True)
class LinearSolution:
    """Values of the variables, the objective, and its proven lower bound."""

    values: Float[np.ndarray, " variables"]
    objective: float
    bound: float


@dataclass(slots=True)
class LinearProgram:
    """Minimise `cost` @ x over `low` <= x <= `high` and the added rows; `whole` variables are integers."""

    cost: Float[np.ndarray, " variables"]
    low: Float[np.ndarray, " variables"]
    high: Float[np.ndarray, " variables"]
    whole: Sequence[bool] | None = None
    _rows: list[np.ndarray] = field(default_factory=list)
    _columns: list[np.ndarray] = field(default_factory=list)
    _values: list[np.ndarray] = field(default_factory=list)
    _low: list[np.ndarray] = field(default_factory=list)
    _high: list[np.ndarray] = field(default_factory=list)
    _n_rows: int = 0

    def at_most(self, limit: Vector, *terms: tuple[Indices, Vector]) -> None:
        """Add one row per element of `limit`: the sum of values * x[columns] over all terms is at most that.

        Columns are [rows] or [rows, terms]; values are broadcast to them.
        """
        self._add(np.full(len(limit), -INFINITY), limit, terms)

    def equal(self, to: Vector, *terms: tuple[Indices, Vector]) -> None:
        """Like `at_most`, but with equality."""
        self._add(to, to, terms)

    def _add(self, low: Vector, high: Vector, terms: Sequence[tuple[Indices, Vector]]) -> None:
        n = len(high)
        for columns, values in terms:
            self._rows.append(np.repeat(np.arange(self._n_rows, self._n_rows + n), columns.size // n))
            self._columns.append(columns.ravel())
            self._values.append(np.broadcast_to(values, columns.shape).ravel())
        self._low.append(low)
        self._high.append(high)
        self._n_rows += n

    def solve(self, time_limit_s: float = 10.0, gap: float = 1e-6) -> LinearSolution | None:
        """Return the optimum, or the best solution found within the time limit; None if there is none."""
        n = len(self.cost)
        # HiGHS accepts a variable once per row, so the coefficients of several terms are summed.
        places, which = np.unique(
            np.concatenate(self._rows) * n + np.concatenate(self._columns), return_inverse=True
        )
        values = np.bincount(which, np.concatenate(self._values)).astype(np.float64)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, self._n_rows
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = self.cost, self.low, self.high
        lp.row_lower_, lp.row_upper_ = np.concatenate(self._low), np.concatenate(self._high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate(
            [[0], np.cumsum(np.bincount(places // n, minlength=self._n_rows))]
        )
        lp.a_matrix_.index_ = places % n
        lp.a_matrix_.value_ = values
        if self.whole is not None:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[bool(w)] for w in self.whole]
        solver = HighsSolver()
        solver.setOptionValue("parallel", "off")  # "threads" would fail if HiGHS runs elsewhere with more
        solver.setOptionValue("time_limit", time_limit_s)
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("presolve", "off" if self.whole is None else "on")
        solver.passModel(lp)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != FEASIBLE:
            return None
        objective = info.objective_function_value
        bound = objective if self.whole is None else info.mip_dual_bound
        return LinearSolution(np.array(solver.getSolution().col_value), objective, bound)
