"""The optimal layouts, as an integer program (HiGHS)."""

from math import isfinite

import numpy as np

from pliant.compiler.layout.layout_problem import Layout, LayoutProblem
from pliant.compiler.layout.majority_vote import LayoutChoice
from pliant.errors import GraphError


def choose_exactly(problem: LayoutProblem, time_limit_s: float = 20.0) -> LayoutChoice:
    """The least time over all assignments of layouts, or the best found in `time_limit_s`.

    Binary x[edge, layout]; y[operator, form]; and for every edge an operator touches a transport from the
    layout the edge has to the one the form wants, at the price of a reorder. If the layout variables are
    integral, the others are too. Raises GraphError when no assignment is feasible.
    """
    model = _IntegerProgram(problem)
    values = model.solve(time_limit_s)
    layouts = {
        edge: max(options, key=lambda layout: values[model.x[edge, layout]])
        for edge, options in ((e, problem.layouts[e]) for e in problem.edges)
    }
    return LayoutChoice(layouts, problem.seconds(layouts))


class _IntegerProgram:
    def __init__(self, problem: LayoutProblem) -> None:
        self.problem = problem
        self.costs: list[float] = []
        self.integral: list[int] = []
        self.rows: list[tuple[dict[int, float], float]] = []
        self.x: dict[tuple[str, Layout], int] = {}
        for edge in problem.edges:
            for layout in problem.layouts[edge]:
                self.x[edge, layout] = self._column(0.0)
                self.integral.append(self.x[edge, layout])
            self.rows.append(({self.x[edge, layout]: 1.0 for layout in problem.layouts[edge]}, 1.0))
        for operator in problem.operators:
            forms = [self._column(form.seconds) for form in operator.forms]
            self.rows.append((dict.fromkeys(forms, 1.0), 1.0))
            for i, edge in enumerate(operator.inputs):
                self._transport(edge, [f.inputs[i] for f in operator.forms], forms, is_read=True)
            for i, edge in enumerate(operator.outputs):
                self._transport(edge, [f.outputs[i] for f in operator.forms], forms, is_read=False)

    def _column(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _transport(self, edge: str, wanted: list[Layout], forms: list[int], is_read: bool) -> None:
        """Add the flow from the edge's layout (x) to the form's layout."""
        leaving: dict[Layout, dict[int, float]] = {layout: {} for layout in self.problem.layouts[edge]}
        arriving: dict[Layout, dict[int, float]] = {want: {} for want in wanted}
        for have in leaving:
            for want in arriving:
                between = (have, want) if is_read else (want, have)
                seconds = self.problem.reorder_s(edge, *between)
                if isfinite(seconds):
                    flow = self._column(seconds)
                    leaving[have][flow] = arriving[want][flow] = 1.0
        for have, flows in leaving.items():
            self.rows.append(({**flows, self.x[edge, have]: -1.0}, 0.0))
        for want, flows in arriving.items():
            takers = {form: -1.0 for form, w in zip(forms, wanted, strict=True) if w == want}
            self.rows.append(({**flows, **takers}, 0.0))

    def solve(self, time_limit_s: float) -> np.ndarray:
        import highspy  # 5 MB, only for exact schedules

        from pliant.compiler.layout.highs_solver import HighsSolver

        solver = HighsSolver()
        solver.setOptionValue("time_limit", time_limit_s)
        solver.setOptionValue("mip_rel_gap", 1e-6)
        n = len(self.costs)
        # In microseconds: HiGHS's tolerances are absolute.
        solver.addVars(n, np.zeros(n), np.ones(n))
        solver.changeColsCost(n, np.arange(n, dtype=np.int32), 1e6 * np.asarray(self.costs))
        whole = np.asarray(self.integral, np.int32)
        kinds = np.full(len(whole), highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(len(whole), whole, kinds)
        starts = np.cumsum([0, *(len(row) for row, _ in self.rows)])[:-1].astype(np.int32)
        index = np.asarray([c for row, _ in self.rows for c in row], np.int32)
        value = np.asarray([v for row, _ in self.rows for v in row.values()])
        sides = np.asarray([right for _, right in self.rows])
        solver.addRows(len(self.rows), sides, sides, len(index), starts, index, value)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:
            raise GraphError("no assignment of layouts lets every operator run.")
        return np.asarray(solver.getSolution().col_value)
