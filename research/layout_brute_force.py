"""Find the best layouts of a small graph by brute force, as a reference for schedules."""

from itertools import product
from math import prod

from pliant.compiler.layout.layout_problem import Layout, LayoutProblem
from pliant.errors import GraphError


def brute_force(problem: LayoutProblem, limit: int = 2_000_000) -> tuple[float, dict[str, Layout]]:
    """The best assignment, by trying all of them. Raises GraphError above `limit` of them."""
    edges = problem.edges
    n = prod(len(problem.layouts[e]) for e in edges)
    if n > limit:
        raise GraphError(f"{n} assignments of layouts are too many to try; the limit is {limit}.")

    # An operator's time depends only on its own edges, so it is computed once per combination of their
    # layouts.
    known: list[dict[tuple[Layout, ...], float]] = [{} for _ in problem.operators]
    touched = [[edges.index(e) for e in dict.fromkeys((*o.inputs, *o.outputs))] for o in problem.operators]

    def seconds(chosen: tuple[Layout, ...]) -> float:
        total = 0.0
        for operator, places, found in zip(problem.operators, touched, known, strict=True):
            own = tuple(chosen[i] for i in places)
            if own not in found:
                found[own] = problem.best(operator, {edges[i]: chosen[i] for i in places})[0]
            total += found[own]
        return total

    best = min(product(*(problem.layouts[e] for e in edges)), key=seconds)
    layouts = dict(zip(edges, best, strict=True))
    return problem.seconds(layouts), layouts
