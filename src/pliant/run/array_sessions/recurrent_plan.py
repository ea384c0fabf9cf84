"""The plan of a recurrent session for a number of words. It prints as a page."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from pliant.ir.program import Program
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.quantities import format_bytes, format_seconds
from pliant.run.array_sessions.operator_calls import OperatorCalls, operators_html, operators_text


@dataclass(frozen=True, slots=True, repr=False)
class RecurrentPlan:
    """The program for a text of `length` words: one step, whose kernel calls are one native call.

    `forms` are the maximum lengths of the compiled forms; a text runs in the smallest form that fits it.
    `expected_s` is the recent time of such a text; None until one was answered as a request.
    """

    name: str
    spec: RecurrentSpec
    n_threads: int
    length: int
    program: Program
    operators: tuple[OperatorCalls, ...]
    forms: tuple[int, ...]
    weight_bytes: int
    arena_bytes: int
    expected_s: float | None

    @property
    def n_calls(self) -> int:
        return sum(operator.n_calls for operator in self.operators)

    def __str__(self) -> str:
        """The plan as a page: layers, memory, time and operators."""
        return "\n".join([*_summary(self), *operators_text(self.operators)]) + "\n"

    def __repr__(self) -> str:
        return f"<RecurrentPlan of {self.name}: {self.length} words, {self.n_calls} kernel calls>"

    def _repr_html_(self) -> str:
        """The plan as HTML for a notebook."""
        summary = "<br>".join(map(escape, _summary(self)))
        return f"<div><p>{summary}</p>{operators_html(self.operators)}</div>"


def _summary(plan: RecurrentPlan) -> Iterator[str]:
    spec = plan.spec
    directions = "both directions" if spec.is_bidirectional else "one direction"
    answer = f"vector of {spec.features}" if spec.labels is None else f"labels {', '.join(spec.labels)}"
    yield f"model: {plan.name}, threads: {plan.n_threads}"
    yield (
        f"  {spec.cell}, layers: {spec.n_layers}, units: {spec.hidden}, {directions}; words of {spec.inputs} "
        f"numbers -> {', '.join(spec.pooling)} -> {answer}"
    )
    yield f"memory: weights {format_bytes(plan.weight_bytes)}, arena {format_bytes(plan.arena_bytes)}"
    yield f"  compiled for up to {', '.join(map(str, plan.forms))} words"
    expected = "" if plan.expected_s is None else f", {format_seconds(plan.expected_s)} expected"
    steps = ", ".join(str(step.work) for step in plan.program.steps)
    yield f"{plan.length} words: {plan.n_calls} kernel calls, steps: {steps}{expected}"
