"""Choose a schedule for a priced problem: none, the paper's votes, or the exact optimum. Pure."""

from dataclasses import dataclass, replace
from typing import Literal

from pliant.compiler.layout.components import choose_by_components
from pliant.compiler.layout.exact_layouts import choose_exactly
from pliant.compiler.layout.layout_problem import Layout, LayoutProblem, OperatorForm
from pliant.compiler.layout.majority_vote import LayoutChoice, choose_by_vote

LayoutMethod = Literal["none", "paper", "exact"]

WORTHWHILE_RATIO = 0.99
"""A schedule with a predicted time above this fraction of the default's is treated as noise.

With two cost tables measured one after the other, each prices the other's choice higher than predicted, by up
to about this fraction of the default's time (bench/fluidml.py, "The cost table measured twice"): chosen forms
tend to be those measured too low.
"""


@dataclass(frozen=True, slots=True)
class LayoutSchedule:
    """A layout for every edge, a form for every operator, and the predicted time.

    `default_s` is the time of the default layouts. `n_candidates` counts the layouts of all edges together.
    """

    layouts: dict[str, Layout]
    forms: tuple[OperatorForm, ...]
    seconds: float
    default_s: float
    n_edges: int
    n_candidates: int
    n_choosable: int
    n_sequences: int
    n_conflicts: int


def choose_schedule(problem: LayoutProblem, kind: LayoutMethod, seed: int = 0) -> LayoutSchedule:
    """The schedule of a kind. `none` needs no times, but all loop orders.

    Layouts are changed only if the predicted time is clearly lower than with the default layouts.
    """
    default = problem.default
    default_s = problem.seconds(default)
    choice = LayoutChoice(default, default_s)
    if kind == "paper":
        choice = choose_by_vote(problem, seed)
    elif kind == "exact":
        choice = choose_by_components(problem, choose_exactly)
    if choice.seconds > WORTHWHILE_RATIO * default_s:
        choice = replace(choice, layouts=default, seconds=default_s)
    layouts = {**default, **choice.layouts}
    best = tuple(problem.best(o, layouts)[1] for o in problem.operators)
    return LayoutSchedule(
        layouts=layouts,
        forms=default_forms(problem) if kind == "none" else best,
        seconds=choice.seconds,
        default_s=default_s,
        n_edges=len(problem.edges),
        n_candidates=sum(len(problem.layouts[e]) for e in problem.edges),
        n_choosable=sum(len(problem.layouts[e]) > 2 for e in problem.edges),
        n_sequences=choice.n_sequences,
        n_conflicts=choice.n_conflicts,
    )


def default_forms(problem: LayoutProblem) -> tuple[OperatorForm, ...]:
    """The forms of the schedule `none`: default layouts, and loops in order i-j-k where there is a choice."""
    return tuple(
        next((f for f in operator.forms if f.variant == "ijk"), operator.forms[0])
        for operator in problem.operators
    )
