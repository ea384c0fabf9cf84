"""The schedulers against brute force, on random graphs of operators with random costs."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.layout.cut_sequences import cut_sequences, longest_sequence
from pliant.compiler.layout.exact_layouts import choose_exactly
from pliant.compiler.layout.layout_problem import LayoutProblem, Operator, OperatorForm
from pliant.compiler.layout.majority_vote import choose_by_vote
from pliant.errors import GraphError
from research.layout_brute_force import brute_force

LAYOUTS = ("row", "column", "panel")


def operator(
    name: str, inputs: tuple[str, ...], output: str, costs: dict[tuple[str, ...], float]
) -> Operator:
    """An operator whose forms are given as (input layouts..., output layout): seconds."""
    forms = tuple(OperatorForm(key[:-1], key[-1:], seconds) for key, seconds in costs.items())
    return Operator(name, inputs, (output,), forms)


def a_problem(seed: int, n: int, n_layouts: int = 3) -> LayoutProblem:
    """A random graph of `n` operators of one or two inputs; outside edges have the default layout only."""
    chance = random.Random(seed)
    layouts = LAYOUTS[:n_layouts]
    edges = ["in"]
    operators = []
    for i in range(n):
        inputs = tuple(chance.sample(edges[-4:], min(len(edges[-4:]), chance.choice([1, 1, 2]))))
        keys = {tuple(chance.choice(layouts) for _ in range(len(inputs) + 1)) for _ in range(5)}
        keys.add(("row",) * (len(inputs) + 1))
        costs = {key: chance.uniform(1e-6, 5e-6) for key in sorted(keys)}
        operators.append(operator(f"o{i}", inputs, f"e{i}", costs))
        edges.append(f"e{i}")
    read = {e for o in operators for e in o.inputs}
    candidates = {e: layouts if e in read and e != "in" else ("row",) for e in edges}
    reorder = {e: {(a, b): 1.5e-6 for a in layouts for b in layouts if a != b} for e in edges}
    return LayoutProblem(tuple(operators), candidates, reorder)


@given(st.integers(0, 10_000), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_the_exact_schedule_is_the_best_of_all(seed: int, n: int) -> None:
    """The integer program and trying everything agree to the tolerance of the solver."""
    problem = a_problem(seed, n)
    best_s, _ = brute_force(problem)
    assert choose_exactly(problem).seconds == pytest.approx(best_s, rel=1e-5)


@given(st.integers(0, 10_000), st.integers(1, 24))
@settings(max_examples=60, deadline=None)
def test_votes_never_beat_the_exact_schedule_and_name_every_edge(seed: int, n: int) -> None:
    """A heuristic below the optimum would be a wrong cost; an edge without a layout could not be lowered."""
    problem = a_problem(seed, n)
    vote = choose_by_vote(problem)
    assert vote.seconds >= choose_exactly(problem).seconds * (1 - 1e-6)
    assert set(vote.layouts) == set(problem.edges)
    assert all(layout in problem.layouts[edge] for edge, layout in vote.layouts.items())


@given(st.integers(0, 10_000), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_operator_is_in_one_sequence_and_none_is_missed_that_is_longer(seed: int, n: int) -> None:
    """Algorithm 2's contract; the longest sequence against the longest way found by relaxation."""
    operators = a_problem(seed, n).operators
    paths = cut_sequences(operators)
    assert sorted(o.name for p in paths for o in p.operators) == sorted(o.name for o in operators)
    for path in paths:
        for o, (before, after) in zip(path.operators, pairwise(path.edges), strict=True):
            assert before in o.inputs
            assert after in o.outputs
    depth: dict[str, int] = {}
    for o in operators:
        for edge in o.outputs:
            depth[edge] = 1 + max(depth.get(e, 0) for e in o.inputs)
    assert max(len(path.operators) for path in paths) == max(depth.values())


def test_a_chain_is_solved_exactly_by_dynamic_programming() -> None:
    """Without branches there are no conflicts, and equation 1 finds the optimum."""
    for seed in range(20):
        chance = random.Random(seed)
        operators = []
        for i in range(7):
            costs = {(a, b): chance.uniform(1e-6, 9e-6) for a in LAYOUTS for b in LAYOUTS}
            operators.append(operator(f"o{i}", (f"e{i}",), f"e{i + 1}", costs))
        problem = LayoutProblem(tuple(operators), {f"e{i}": LAYOUTS for i in range(8)})
        vote = choose_by_vote(problem)
        assert vote.n_conflicts == 0
        assert vote.seconds == pytest.approx(choose_exactly(problem).seconds, rel=1e-6)


def test_a_reorder_is_taken_where_it_pays() -> None:
    """The producer is fast in one layout, the consumer in another: cheap reorders are used, dear ones not."""
    operators = (
        operator("a", ("x",), "y", {("row", "row"): 9e-6, ("row", "column"): 1e-6}),
        operator("b", ("y",), "z", {("row", "row"): 1e-6, ("column", "row"): 9e-6}),
    )
    layouts = {"x": ("row",), "y": ("row", "column"), "z": ("row",)}
    for price, expected in ((1e-6, 3e-6), (20e-6, 10e-6)):
        problem = LayoutProblem(
            operators, layouts, {"y": {("column", "row"): price, ("row", "column"): price}}
        )
        assert choose_exactly(problem).seconds == pytest.approx(expected)
        assert choose_by_vote(problem).seconds == pytest.approx(expected)


def test_conflicts_are_settled_by_vote_and_ties_by_the_seed() -> None:
    """Two sequences want an edge in different layouts: the result is one of them, the same for a seed."""
    problem = a_problem(3, 20)
    choices = [choose_by_vote(problem, seed=5) for _ in range(3)]
    assert len({tuple(sorted(c.layouts.items())) for c in choices}) == 1
    assert any(choose_by_vote(a_problem(s, 20)).n_conflicts for s in range(10))


def test_a_deep_graph_is_no_problem() -> None:
    """3,000 operators in a row: recursion would end the interpreter."""
    costs = {("row", "row"): 1e-6}
    operators = [operator(f"o{i}", (f"e{i}",), f"e{i + 1}", costs) for i in range(3000)]
    assert len(longest_sequence(operators).operators) == 3000
    assert len(cut_sequences(operators)) == 1


def test_operators_that_nothing_can_feed_are_refused() -> None:
    """A form that wants a layout nobody can bring is an error, not an endless cost."""
    lonely = operator("a", ("x",), "y", {("column", "row"): 1e-6})
    with pytest.raises(GraphError, match="no assignment"):
        choose_exactly(LayoutProblem((lonely,), {"x": ("row",), "y": ("row",)}))
