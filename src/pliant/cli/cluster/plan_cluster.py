"""`pliant cluster plan`: the share of each device and the predicted time."""

from dataclasses import dataclass
from typing import Annotated

import typer

from pliant.cli.cluster.cluster_options import Deadline, ModelName, PrimaryArguments, TokensOption
from pliant.cli.cluster.cluster_show import plan_values
from pliant.cli.shared.show import print_json
from pliant.cli.shared.verb_options import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlanArguments:
    """The options of `pliant cluster plan`."""

    model: ModelName
    primary: PrimaryArguments
    tokens: TokensOption = 128
    latency: Deadline = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say why: every mode's time, memory, what might be saved.")
    ] = False
    json: Json = False


def plan(args: ClusterPlanArguments) -> None:
    """Choose who takes what, and predict the time; nothing runs."""
    with args.primary.open(args.model) as session:
        plan_at = session.explain if args.explain else session.plan_at
        made = plan_at(args.tokens, args.latency)
    if args.json:
        print_json(plan_values(made))
        return
    typer.echo(str(made), nl=False)
