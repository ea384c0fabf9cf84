"""`pliant plan`: what would run, and why; under a target and a buffer where the model has them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.api import open_elastic as api
from pliant.api.model import ElasticModel
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.verb_options import Json, SessionArguments, System, resolve_for
from pliant.ir.text.program_text import program_text
from pliant.plan.plan import Plan
from pliant.plan.plan_figure import draw_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArguments:
    """The options of `pliant plan`."""

    session: SessionArguments
    baseline: System = None
    plot: Annotated[Path | None, typer.Option(help="Draw the plan: .svg, .png or .pdf.")] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print the program: every step, its reads and waits.")
    ] = False
    json: Json = False


def plan(args: PlanArguments) -> None:
    """Say what would run: submodel, preload set and bits, or a graph's kernels, and what that takes."""
    model = resolve_for(args.session.source, "plan")
    made: Any
    if isinstance(model, ElasticModel):
        made = _elastic_plan(args, model)
    else:
        refuse_options(model, args, ("baseline", "plot", "explain"))
        with (
            progress_bar() as on_progress,
            args.session.open(model, on_progress, takes=("length",)) as session,
        ):
            made = session.explain(args.session.planned_length)
    if args.json:
        print_json(made)
        return
    typer.echo(str(made), nl=False)
    if args.explain and isinstance(made, Plan):
        typer.echo(program_text(made.program), nl=False)
    if args.plot is not None:
        typer.echo(f"drawn as {args.plot}")


def _elastic_plan(args: PlanArguments, model: ElasticModel) -> Plan:
    with progress_bar() as on_progress, args.session.open_store(model, on_progress) as store:
        made = api.plan_of(store, *args.session.terms(model, store, on_progress), args.baseline)
    if args.plot is not None:
        draw_plan(made, args.plot)
    return made
