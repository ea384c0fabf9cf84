"""Layouts by dynamic programming along sequences and majority vote (FluidML 3, Algorithm 3, equation 1)."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from pliant.compiler.layout.cut_sequences import OperatorSequence, cut_sequences
from pliant.compiler.layout.layout_problem import Layout, LayoutProblem, Operator, OperatorForm


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A layout for every edge, the predicted time, and how it was found."""

    layouts: Mapping[str, Layout]
    seconds: float
    n_sequences: int = 0
    n_conflicts: int = 0


def choose_by_vote(problem: LayoutProblem, seed: int = 0) -> LayoutChoice:
    """The paper's schedule: each sequence is optimised alone, conflicts are settled by vote, and losing
    sequences are optimised again.

    Sequences that touch an edge (on their path, or as a side input or output of one of their operators) vote
    for its layout; ties are broken randomly with `seed`. A sequence that lost a vote is optimised again with
    all contested edges fixed.
    """
    paths = cut_sequences(problem.operators)
    proposals = [_optimise(problem, path, {}) for path in paths]
    ballots: dict[str, Counter[Layout]] = {}
    for proposal in proposals:
        for edge, layout in proposal.items():
            ballots.setdefault(edge, Counter())[layout] += 1
    chance = random.Random(seed)
    contested = {edge: _winner(votes, chance) for edge, votes in ballots.items() if len(votes) > 1}
    chosen = {edge: next(iter(votes)) for edge, votes in ballots.items() if len(votes) == 1}
    chosen |= contested
    for path, proposal in zip(paths, proposals, strict=True):
        if any(proposal.get(edge, layout) != layout for edge, layout in contested.items()):
            own = {edge for o in path.operators for edge in o.outputs}
            again = _optimise(problem, path, contested)
            chosen |= {edge: layout for edge, layout in again.items() if edge in own}
    return LayoutChoice(chosen, problem.seconds(chosen), len(paths), len(contested))


def _winner(votes: Counter[Layout], chance: random.Random) -> Layout:
    most = max(votes.values())
    return chance.choice(sorted(layout for layout, n in votes.items() if n == most))


def _optimise(
    problem: LayoutProblem, path: OperatorSequence, fixed: Mapping[str, Layout]
) -> dict[str, Layout]:
    """The fastest layouts of every edge the path's operators touch (equation 1), with `fixed` as given.

    T(edge, layout) = min over the layouts of the edge before of T there + the kernel's time, reorders
    included. Side edges that are not fixed have the layouts of the kernel's fastest form.
    """

    def allowed(edge: str) -> tuple[Layout, ...]:
        if not edge:
            return ("",)
        return (fixed[edge],) if edge in fixed else problem.layouts[edge]

    reached: dict[Layout, float] = dict.fromkeys(allowed(path.edges[0]), 0.0)
    trail: list[dict[Layout, tuple[Layout, OperatorForm]]] = []
    for operator, (before, after) in zip(path.operators, pairwise(path.edges), strict=True):
        arrived: dict[Layout, float] = {}
        came: dict[Layout, tuple[Layout, OperatorForm]] = {}
        for layout in allowed(after):
            for earlier, so_far in reached.items():
                pinned = {**_fixed_layouts(operator, fixed), before: earlier, after: layout}
                seconds, form = _fastest(problem, operator, pinned)
                if so_far + seconds < arrived.get(layout, inf):
                    arrived[layout], came[layout] = so_far + seconds, (earlier, form)
        trail.append(came)
        reached = arrived
    layout = min(reached, key=lambda x: reached[x])
    chosen: dict[str, Layout] = {}
    steps = list(zip(path.operators, pairwise(path.edges), trail, strict=True))
    for operator, (before, after), came in reversed(steps):
        earlier, form = came[layout]
        chosen |= _sides(problem, operator, form, fixed)
        chosen[after] = layout
        if before:
            chosen[before] = earlier
        layout = earlier
    return chosen


def _fixed_layouts(operator: Operator, fixed: Mapping[str, Layout]) -> dict[str, Layout]:
    return {edge: fixed[edge] for edge in (*operator.inputs, *operator.outputs) if edge in fixed}


def _fastest(
    problem: LayoutProblem, operator: Operator, pinned: Mapping[str, Layout]
) -> tuple[float, OperatorForm]:
    """The fastest form; a side edge that cannot have the form's layout is reordered from its default."""
    best: tuple[float, OperatorForm] = (inf, operator.forms[0])
    for form in operator.forms:
        chosen = {**_sides(problem, operator, form, {}), **pinned}
        seconds = problem.form_s(operator, form, chosen)
        if seconds < best[0]:
            best = (seconds, form)
    return best


def _sides(
    problem: LayoutProblem, operator: Operator, form: OperatorForm, fixed: Mapping[str, Layout]
) -> dict[str, Layout]:
    """The layout of each edge of the operator: that of `form` if the edge supports it, else its default."""
    edges = (*operator.inputs, *operator.outputs)
    wanted = (*form.inputs, *form.outputs)
    return {
        edge: fixed.get(edge, want if want in problem.layouts[edge] else problem.layouts[edge][0])
        for edge, want in zip(edges, wanted, strict=True)
    }
