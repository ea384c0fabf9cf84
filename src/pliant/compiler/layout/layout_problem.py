"""The layout problem as a value: operators, the layouts they can run with, and the cost of each.

These are kernel times by layout, within one step of a program. `ir.cost.Cost` prices steps, without operators
or layouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from pliant.errors import GraphError

Layout = str


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """One way to run an operator: the layout it reads each input in, writes each output in, and its time.

    `variant` names a loop order or an algorithm, "" the default: tiles.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    seconds: float
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel between edges; `forms[0]` is its default."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forms: tuple[OperatorForm, ...]

    def __post_init__(self) -> None:
        for form in self.forms:
            if (len(form.inputs), len(form.outputs)) != (len(self.inputs), len(self.outputs)):
                raise GraphError(f"a form of {self.name} names {form}, but it reads {self.inputs} and "
                                 f"writes {self.outputs}.")  # fmt: skip
        if not self.forms:
            raise GraphError(f"operator {self.name} has no form to run in.")


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """The problem of choosing a layout for every edge (tensor).

    `layouts[edge]` are its candidates, the default first; edges of the graph's inputs and outputs list only
    layouts that the caller supports. `reorder[edge][a, b]` is the time to convert the edge from layout a to
    b; a missing entry is not possible. Operators are in topological order.
    """

    operators: tuple[Operator, ...]
    layouts: Mapping[str, tuple[Layout, ...]]
    reorder: Mapping[str, Mapping[tuple[Layout, Layout], float]] = field(default_factory=dict)

    def reorder_s(self, edge: str, have: Layout, want: Layout) -> float:
        return 0.0 if have == want else self.reorder.get(edge, {}).get((have, want), inf)

    def form_s(self, operator: Operator, form: OperatorForm, chosen: Mapping[str, Layout]) -> float:
        """`form`'s time, including reorders, with the layouts of `chosen`; other edges have the form's
        layouts.
        """
        total = form.seconds
        for edge, want in zip(operator.inputs, form.inputs, strict=True):
            total += self.reorder_s(edge, chosen.get(edge, want), want)
        # An output written in another layout than chosen is reordered once, after the operator.
        for edge, have in zip(operator.outputs, form.outputs, strict=True):
            total += self.reorder_s(edge, have, chosen.get(edge, have))
        return total

    def best(self, operator: Operator, chosen: Mapping[str, Layout]) -> tuple[float, OperatorForm]:
        """The fastest form for these layouts and its time; the first one on a tie."""
        return min(
            ((self.form_s(operator, form, chosen), form) for form in operator.forms), key=lambda x: x[0]
        )

    def seconds(self, chosen: Mapping[str, Layout]) -> float:
        """The whole graph's time when every edge has its layout of `chosen`."""
        return sum(self.best(operator, chosen)[0] for operator in self.operators)

    @property
    def default(self) -> dict[str, Layout]:
        return {edge: layouts[0] for edge, layouts in self.layouts.items()}

    @property
    def edges(self) -> tuple[str, ...]:
        """Every edge an operator touches, in order of first touch."""
        touched = (e for o in self.operators for e in (*o.inputs, *o.outputs))
        return tuple(dict.fromkeys(touched))
