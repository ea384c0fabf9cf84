"""The summary that `pliant compile` prints of a text model in C."""

from dataclasses import dataclass

import typer
from rich.table import Table

from pliant.api.compile_library import LibraryReport
from pliant.cli.shared.show import console, print_json
from pliant.compiler.aot.model.library import LibrarySizes
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.plan.plan import Plan
from pliant.quantities import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan of a library for inputs of up to `length` tokens; times in seconds."""

    length: int
    target_s: float
    predicted_s: float
    predicted_p95_s: float
    submodel: tuple[int, int]
    bits: tuple[tuple[int, ...], ...]
    expected_accuracy: float | None


@dataclass(frozen=True, slots=True)
class CompiledLibrary:
    """The output of `--json`. `ids_only` says why the library has no tokenizer; null if it has one."""

    output: str
    library: str | None
    memory: LibrarySizes
    plans: tuple[PlanSummary, ...]
    profile: str
    ids_only: str | None


def show_library(report: LibraryReport, isa: Isa, *, as_json: bool) -> None:
    """Print the plans, the memory and the targets that could not be met."""
    said = CompiledLibrary(
        output=str(report.output),
        library=None if report.library is None else str(report.library),
        memory=report.sizes,
        plans=tuple(_summary(plan, n) for plan, n in zip(report.plans, report.lengths, strict=True)),
        profile=_profile(report, isa),
        ids_only=report.ids_only,
    )
    if as_json:
        print_json(said)
        return
    if said.plans:
        console().print(_table(said.plans))
        typer.echo(f"planned with {said.profile}")
    sizes = report.sizes
    parts = {"preload": sizes.preload, "working": sizes.working, "arena": sizes.arena, "tables": sizes.tables}
    typer.echo("memory: " + ", ".join(f"{name} {format_bytes(n)}" for name, n in parts.items() if n))
    if said.ids_only is not None:
        typer.echo(f"takes ids, no text: {said.ids_only}")
    typer.echo(f"written to {said.output}")
    typer.echo(f"linked as {said.library}" if said.library else f"not linked: {report.reason}")


def _summary(plan: Plan, length: int) -> PlanSummary:
    return PlanSummary(
        length=length,
        target_s=plan.budget.target_s,
        predicted_s=plan.latency_s,
        predicted_p95_s=plan.latency_p95_s,
        submodel=(plan.n, plan.width),
        bits=plan.bits,
        expected_accuracy=plan.expected_accuracy,
    )


def _profile(report: LibraryReport, isa: Isa) -> str:
    if not report.is_own_profile:
        return "the profile that was given"
    is_foreign = isa != host_isa()
    return "this machine's profile" + (", not its target's: give --profile" if is_foreign else "")


def _table(plans: tuple[PlanSummary, ...]) -> Table:
    table = Table("tokens", "target", "predicted", "at most", "submodel", "bits", "accuracy")
    for plan in plans:
        bits = sorted({b for row in plan.bits for b in row})
        accuracy = "" if plan.expected_accuracy is None else f"{plan.expected_accuracy:.1%}"
        times = (format_seconds(t) for t in (plan.target_s, plan.predicted_s, plan.predicted_p95_s))
        some = f"{bits[0]}-{bits[-1]}" if len(bits) > 1 else str(bits[0])
        table.add_row(str(plan.length), *times, "x".join(map(str, plan.submodel)), some, accuracy)
    return table
