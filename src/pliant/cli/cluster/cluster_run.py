"""`pliant cluster run`: answer with a model split over the cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from pliant.cli.cluster.cluster_options import ModelName, PrimaryArguments
from pliant.cli.cluster.cluster_show import reply_values, show_reply, show_timeline
from pliant.cli.shared.show import print_json
from pliant.cli.shared.trace import Trace, kept
from pliant.cli.shared.verb_options import Json
from pliant.errors import InputError
from pliant.run.trace import write_trace

if TYPE_CHECKING:
    from pliant.api.open_cluster import Cluster, ClusterReply


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRunArguments:
    """The options of `pliant cluster run`."""

    model: ModelName
    primary: PrimaryArguments
    text: Annotated[str | None, typer.Option(help="The text to answer.")] = None
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None
    input: Annotated[Path | None, typer.Option(help="Feeds as .npz: ids and types, pixels, or mel.")] = None
    tokens: Annotated[int | None, typer.Option(help="Random feeds of so many rows.", min=1)] = None
    repeat: Annotated[int, typer.Option(help="Answer so many times.", min=1)] = 1
    trace: Trace = None
    json: Json = False


def run(args: ClusterRunArguments) -> None:
    """Answer with a model split over the cluster; with --json, one line of JSON a run."""
    if sum(one is not None for one in (args.text, args.input, args.tokens)) != 1 or (
        args.pair is not None and args.text is None
    ):
        raise InputError("give one of --text, alone or with --pair, --input FILE, or --tokens N.")
    with args.primary.open(args.model) as cluster:
        for _ in range(args.repeat):
            reply = _answer(cluster, args.model, args.text, args.pair, args.input, args.tokens)
            if args.json:
                print_json(reply_values(reply))
            else:
                show_reply(reply)
    if not args.json and args.repeat == 1:
        show_timeline(reply)
    if args.trace is not None:
        with kept(args.trace) as path:
            write_trace(path, reply.program, predicted=reply.predicted_spans, measured=reply.spans)


def _answer(
    cluster: "Cluster", model: str, text: str | None, pair: str | None, input: Path | None, tokens: int | None
) -> "ClusterReply":
    if text is not None:
        return cluster.run(model, text, pair)
    if input is not None:
        return cluster.run(model, _feeds(input))
    return cluster.run(model, cluster.sample(model, tokens or 1))


def _feeds(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds no arrays: {error}. Write it with numpy.savez.") from error
