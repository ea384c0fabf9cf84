"""`pliant plan`: what would run under a target and a buffer, and why."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant.api import open_elastic as api
from pliant.api.resolve import resolve_elastic
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.verb_options import Json, SessionArguments, System
from pliant.ir.program_text import program_text
from pliant.plan.picture import draw_plan
from pliant.plan.submodel.lower_plan import lower_plan


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
    """Choose submodel, preload set and bits, and predict when everything happens."""
    model = resolve_elastic(args.session.source, "plan")
    with progress_bar() as on_progress, args.session.open_store(model, on_progress) as store:
        made = api.plan_of(
            store, args.session.profile(store, on_progress), args.session.options, args.baseline
        )
    if args.plot is not None:
        draw_plan(made, args.plot)
    if args.json:
        print_json(made)
        return
    typer.echo(str(made), nl=False)
    if args.explain:
        typer.echo(program_text(lower_plan(made)), nl=False)
    if args.plot is not None:
        typer.echo(f"drawn as {args.plot}")
