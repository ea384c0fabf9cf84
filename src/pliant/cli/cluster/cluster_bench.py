"""`pliant cluster bench`: compare a split model with its prediction and with this device alone."""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from pliant.cli.cluster.cluster_options import ModelName, PrimaryArguments, TokensOption
from pliant.cli.shared.show import console, print_json
from pliant.cli.shared.verb_options import Json
from pliant.ir.partition import Mode
from pliant.ir.reply import Reply
from pliant.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from pliant.cluster.session.cluster_details import ClusterDetails


@dataclass(frozen=True, slots=True)
class ConfigurationTimes:
    """One configuration: predicted and measured seconds a run, and the difference of its answers."""

    devices: tuple[str, ...]
    mode: Mode
    predicted_s: float
    median_s: float
    p95_s: float
    sent_bytes: int
    n_faults: int
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBenchArguments:
    """The options of `pliant cluster bench`."""

    model: ModelName
    primary: PrimaryArguments
    tokens: TokensOption = 128
    runs: Annotated[int, typer.Option(help="Number of timed runs of each configuration.", min=3)] = 10
    json: Json = False


def bench(args: ClusterBenchArguments) -> None:
    """Time a model over the cluster and on this device alone, in turns."""
    together: list[Reply[ClusterDetails]] = []
    alone: list[Reply[ClusterDetails]] = []
    with args.primary.open(args.model) as session:
        feeds = session.sample(args.tokens)
        for i in range(args.runs + 1):
            for answer, found in ((session, together), (session.alone, alone)):
                reply = answer(feeds)
                if i:  # the first loads weights
                    found.append(reply)
    rows = [_measured(found, alone[0]) for found in (together, alone)]
    if args.json:
        print_json(rows)
        return
    table = Table(
        "run", "devices", "mode", "predicted", "median", "95th percentile", "exchanged", "difference"
    )
    for run, row in zip(("cluster", "alone"), rows, strict=True):
        table.add_row(
            run,
            ", ".join(row.devices),
            row.mode,
            format_seconds(row.predicted_s),
            format_seconds(row.median_s),
            format_seconds(row.p95_s),
            format_bytes(row.sent_bytes),
            f"{row.difference:.2e}",
        )
    console().print(table)
    typer.echo(f"{args.runs} runs each, in turns; alone / cluster {rows[1].median_s / rows[0].median_s:.2f}")


def _measured(replies: "list[Reply[ClusterDetails]]", alone: "Reply[ClusterDetails]") -> ConfigurationTimes:
    times = [reply.details.run_s for reply in replies]
    last = replies[-1].details
    return ConfigurationTimes(
        devices=last.partitions[-1].participants,
        mode=last.mode,
        predicted_s=last.predicted_s,
        median_s=median(times),
        p95_s=float(np.quantile(times, 0.95)),
        sent_bytes=last.sent_bytes,
        n_faults=sum(len(reply.details.faults) for reply in replies),
        difference=max(
            float(np.abs(_numbers(reply) - _numbers(alone)).max(initial=0.0)) for reply in replies
        ),
    )


def _numbers(reply: "Reply[ClusterDetails]") -> np.ndarray:
    """Return the output of the head: the first output, with a first dimension of 1."""
    return next(iter(reply.outputs.values()))
