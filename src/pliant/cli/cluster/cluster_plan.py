"""`pliant cluster plan`: who would take what, and how long it should take."""

from typing import Annotated

import typer

from pliant.cli.cluster.cluster_options import Deadline, Led, ModelName, Tokens, leading
from pliant.cli.cluster.cluster_show import plan_values, show_plan
from pliant.cli.show import print_json
from pliant.cli.verb_options import Json


@leading
def plan(
    model: ModelName,
    led: Led,
    tokens: Tokens = 128,
    latency: Deadline = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say why: every mode's time, memory, what might be saved.")
    ] = False,
    json: Json = False,
) -> None:
    """Choose who takes what, and predict the time; nothing runs."""
    with led.open(model) as cluster:
        made = cluster.plan(model, tokens, latency, explain=explain)
    if json:
        print_json(plan_values(made))
        return
    show_plan(made)
    if made.met is False:
        typer.echo("the deadline cannot be met; this is the quickest plan that was found")
