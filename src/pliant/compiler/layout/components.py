"""Solve a layout problem by its independent components; equal components are solved once."""

from collections.abc import Callable
from dataclasses import replace

from pliant.compiler.layout.layout_problem import Layout, LayoutProblem, Operator
from pliant.compiler.layout.majority_vote import LayoutChoice

Solver = Callable[[LayoutProblem], LayoutChoice]


def choose_by_components(problem: LayoutProblem, solve: Solver) -> LayoutChoice:
    """The solver's choices for all parts together; equal in cost to its choice for the whole if it is
    exact.
    """
    layouts: dict[str, Layout] = {}
    solved: dict[object, dict[str, Layout]] = {}
    for part in split_components(problem):
        edges = part.edges
        name = {edge: str(i) for i, edge in enumerate(edges)}
        like = _component_key(part, name)
        if like not in solved:
            chosen = part.default if _is_settled(part) else dict(solve(part).layouts)
            solved[like] = {name[edge]: chosen[edge] for edge in edges}
        layouts |= {edge: solved[like][name[edge]] for edge in edges}
    return LayoutChoice(layouts, problem.seconds(layouts))


def split_components(problem: LayoutProblem) -> list[LayoutProblem]:
    """The connected components: operators connected by edges with several layouts, in order, with these
    edges.
    """
    root = list(range(len(problem.operators)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    touched: dict[str, int] = {}
    for i, operator in enumerate(problem.operators):
        for edge in (*operator.inputs, *operator.outputs):
            if len(problem.layouts[edge]) > 1:
                root[find(i)] = find(touched.setdefault(edge, i))
    groups: dict[int, list[Operator]] = {}
    for i, operator in enumerate(problem.operators):
        groups.setdefault(find(i), []).append(operator)
    return [_restrict(problem, tuple(group)) for group in groups.values()]


def _restrict(problem: LayoutProblem, operators: tuple[Operator, ...]) -> LayoutProblem:
    edges = {edge for o in operators for edge in (*o.inputs, *o.outputs)}
    return replace(
        problem,
        operators=operators,
        layouts={e: problem.layouts[e] for e in edges},
        reorder={e: r for e, r in problem.reorder.items() if e in edges},
    )


def _is_settled(part: LayoutProblem) -> bool:
    return all(len(layouts) == 1 for layouts in part.layouts.values())


def _component_key(part: LayoutProblem, name: dict[str, str]) -> object:
    """A key that is equal for parts that differ only in names."""
    operators = tuple(
        (tuple(name[e] for e in o.inputs), tuple(name[e] for e in o.outputs), o.forms) for o in part.operators
    )
    edges = tuple(
        (part.layouts[e], tuple(sorted(part.reorder.get(e, {}).items())))
        for e in sorted(name, key=lambda e: int(name[e]))
    )
    return operators, edges
