"""Small linear and integer programs whose optima are known by hand."""

import highspy
import numpy as np
import pytest

from pliant.plan.linear_program import INFINITY, LinearProgram


def _knapsack(whole: list[bool] | None) -> LinearProgram:
    """Most value of two goods of weights 2 and 3, values 3 and 4, within 4."""
    lp = LinearProgram(np.array([-3.0, -4.0]), np.zeros(2), np.array([1.0, 1.0]), whole)
    lp.at_most(np.array([4.0]), (np.array([[0, 1]]), np.array([2.0, 3.0])))
    return lp


def test_the_optimum_of_a_linear_program() -> None:
    """All of the first good and two thirds of the second."""
    solved = _knapsack(None).solve()
    assert solved is not None
    assert solved.values.tolist() == pytest.approx([1.0, 2 / 3])
    assert solved.objective == pytest.approx(-3 - 8 / 3)


def test_whole_variables_are_whole() -> None:
    """The second good alone is worth more than the first."""
    solved = _knapsack([True, True]).solve()
    assert solved is not None
    assert solved.values.tolist() == pytest.approx([0.0, 1.0])
    assert solved.bound == pytest.approx(solved.objective)


def test_terms_of_one_variable_add_up() -> None:
    """2 x + 3 x <= 10, x >= y: a row may name a variable more than once."""
    lp = LinearProgram(np.array([-1.0, 0.0]), np.zeros(2), np.full(2, INFINITY))
    x, one = np.array([0]), np.ones(1)
    lp.at_most(np.array([10.0]), (x, 2 * one), (x, 3 * one))
    lp.equal(np.array([0.5]), (x, one), (np.array([1]), -one))
    solved = lp.solve()
    assert solved is not None
    assert solved.values.tolist() == pytest.approx([2.0, 1.5])


def test_what_cannot_be_is_none() -> None:
    """x <= -1 and x >= 0."""
    lp = LinearProgram(np.ones(1), np.zeros(1), np.ones(1))
    lp.at_most(np.array([-1.0]), (np.array([0]), np.ones(1)))
    assert lp.solve() is None


def test_a_process_that_runs_highs_itself_is_no_obstacle() -> None:
    """HiGHS keeps one set of threads for the process; a user's solver may have started them before."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    highspy.Highs.resetGlobalScheduler(True)
    solver.setOptionValue("threads", 2)
    solver.addVariable(0.0, 1.0)
    solver.run()
    try:
        assert _knapsack([True, True]).solve() is not None
    finally:
        highspy.Highs.resetGlobalScheduler(True)
