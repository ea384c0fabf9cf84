"""The plan of a session on a graph: the programs for the shapes seen so far. It prints as a page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.ir.program import Program
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import PrecisionChoice
from pliant.quantities import format_bytes, format_seconds
from pliant.run.array_sessions.operator_calls import (
    OperatorCalls,
    operator_calls,
    operators_html,
    operators_text,
)

if TYPE_CHECKING:
    from pliant.run.graph.graph_runner import GraphRunner
    from pliant.run.graph.schedule_graph import ScheduleReport


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The program for inputs of these shapes, and the kernel calls of its steps.

    `predicted_s` and `default_s` are sums of measured kernel times, for the chosen and for the default
    layouts; they are set where `schedule` was chosen by times. `measured_s` is the median of a whole run, set
    where the session was profiled.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType | Port]
    program: Program
    operators: tuple[OperatorCalls, ...]
    arena_bytes: int
    schedule: "ScheduleReport | None" = None
    measured_s: float | None = None

    @property
    def n_calls(self) -> int:
        return sum(operator.n_calls for operator in self.operators)

    @property
    def predicted_s(self) -> float | None:
        return self.schedule.predicted_s or None if self.schedule is not None else None


@dataclass(frozen=True, slots=True, repr=False)
class ArrayPlan:
    """The images that a session keeps, the latest last, and the memory that they share.

    `arena_bytes` is the arena of intermediate tensors, which the images use in turns; all images share one
    copy of the weights. `compute` is the arithmetic of products with constant matrices, `precision` says how
    it was chosen. `remarks` are sentences on options without effect.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    n_threads: int
    weight_bytes: int
    arena_bytes: int
    images: tuple[ImagePlan, ...]
    compute: ComputeDtype | None = None
    precision: PrecisionChoice | None = None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The plan as a page: ports, memory, and for each image shapes, layouts, times and operators."""
        lines = list(_summary(self))
        for image in self.images:
            lines += ["", *_image_lines(image), *operators_text(image.operators)]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        shapes = "; ".join(_shapes(image.inputs) for image in self.images)
        return f"<ArrayPlan of {self.name}: {len(self.images)} images{f' ({shapes})' if shapes else ''}>"

    def _repr_html_(self) -> str:
        """The plan as HTML for a notebook."""
        parts = [f"<p>{'<br>'.join(map(escape, _summary(self)))}</p>"]
        for image in self.images:
            parts.append(f"<p>{'<br>'.join(map(escape, _image_lines(image)))}</p>")
            parts.append(operators_html(image.operators))
        return f"<div>{''.join(parts)}</div>"


def image_plan(runner: "GraphRunner") -> ImagePlan:
    """The plan of one runner: its program and kernel calls."""
    return ImagePlan(
        runner.inputs,
        runner.outputs,
        runner.program,
        operator_calls(runner.rows),
        runner.arena_bytes,
        runner.schedule,
        runner.measured_s,
    )


def _summary(plan: ArrayPlan) -> Iterator[str]:
    sides = (", ".join(f"{port.name}: {port}" for port in side) for side in (plan.inputs, plan.outputs))
    yield f"model: {plan.name}, threads: {plan.n_threads}"
    yield f"  {' -> '.join(sides)}"
    yield f"memory: weights {format_bytes(plan.weight_bytes)}, arena {format_bytes(plan.arena_bytes)}"
    if plan.precision is not None:
        yield from plan.precision.reasons
    elif plan.compute is not None:
        yield f"compute: {plan.compute}"
    yield from plan.remarks
    if not plan.images:
        yield "no shapes are compiled yet: the first input compiles its own, or explain(length) does."


def _image_lines(image: ImagePlan) -> Iterator[str]:
    yield f"{_shapes(image.inputs)} -> {_shapes(image.outputs)}"
    arena = format_bytes(image.arena_bytes)
    measured = "" if image.measured_s is None else f", {format_seconds(image.measured_s)} measured"
    steps = ", ".join(str(step.work) for step in image.program.steps)
    yield f"  {image.n_calls} kernel calls, steps: {steps}; arena {arena}{measured}"
    chosen = image.schedule
    if chosen is None:
        return
    times = ""
    if chosen.predicted_s:
        by_default = format_seconds(chosen.default_s)
        times = f"; {format_seconds(chosen.predicted_s)} predicted, {by_default} in default layouts"
    yield (
        f"  layouts ({chosen.kind}): {chosen.turned} of {chosen.edges} tensors not in their default, "
        f"{chosen.reorders} reorders{times}"
    )


def _shapes(tensors: Mapping[str, TensorType] | Mapping[str, TensorType | Port]) -> str:
    return ", ".join(f"{name}: {shape}" for name, shape in tensors.items())
