"""`pliant plan`: what would run under a target and a buffer, and why."""

from pathlib import Path
from typing import Annotated

import typer

from pliant import api
from pliant.api import Baseline
from pliant.cli.options import (
    Anytime,
    Asked,
    BestEffort,
    Choose,
    DilateCompute,
    DilateIo,
    Json,
    Latency,
    Length,
    Precise,
    Preload,
    Source,
    Threads,
    Working,
)
from pliant.cli.show import print_json, progress_bar, show_plan
from pliant.ir.text import program_text
from pliant.plan.lower import lower_plan
from pliant.plan.picture import draw_plan


def plan(
    source: Source,
    latency: Latency,
    preload: Preload = "0",
    working: Working = None,
    length: Length = 64,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan: .svg, .png or .pdf.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print the program: every step, its reads and waits.")
    ] = False,
    baseline: Annotated[
        Baseline | None, typer.Option(help="Plan as one of the systems STI is compared with.")
    ] = None,
    threads: Threads = None,
    best_effort: BestEffort = False,
    anytime: Anytime = True,
    compute: Precise = "fp32",
    choose: Choose = "accuracy",
    dilate_compute: DilateCompute = 1.0,
    dilate_io: DilateIo = 1.0,
    json: Json = False,
) -> None:
    """Choose submodel, preload set and bits, and predict when everything happens."""
    asked = Asked(
        source, latency, preload, length, threads, best_effort, anytime, compute, dilate_compute, dilate_io,
        choose=choose, working=working,
    )  # fmt: skip
    options = asked.options
    with progress_bar() as on_progress, api.open_source(source, api.cache_directory(), on_progress) as store:
        made = api.plan_of(store, asked.profile(store, on_progress), options, baseline)
    if plot is not None:
        draw_plan(made, plot)
    if json:
        print_json(made)
        return
    show_plan(made)
    if explain:
        typer.echo(program_text(lower_plan(made)), nl=False)
    if plot is not None:
        typer.echo(f"drawn as {plot}")
