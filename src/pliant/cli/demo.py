"""`pliant demo`: answer four sentences with the model that ships with pliant; show plan and timeline."""

from dataclasses import dataclass
from typing import Annotated

import typer

from pliant.api.resolve import resolve_elastic, shipped_models
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.show_reply import reply_values, show_reply, show_steps
from pliant.cli.shared.verb_options import Json, SessionArguments, shipped
from pliant.errors import InputError
from pliant.quantities import format_bytes

SENTENCES = (
    "a charming and often affecting journey",
    "unflinchingly bleak and desperate",
    "the plot is thin , but the cast is a delight to watch",
    "a tedious , overlong mess that never finds its tone",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoArguments:
    """The options of `pliant demo`."""

    source: Annotated[str, typer.Argument(help="Model to open.", autocompletion=shipped)] = "sst2"
    latency: Annotated[str, typer.Option(help="Latency target from text to answer.")] = "20ms"
    preload: Annotated[str, typer.Option(help="Bytes of weights to keep in memory between runs.")] = "200KB"
    json: Json = False


def demo(args: DemoArguments) -> None:
    """Open the shipped model under a target, show the plan, answer, and compare with the prediction."""
    if args.source == "sst2" and args.source not in shipped_models():
        raise InputError("this installation ships no model 'sst2'; name a model directory: pliant demo DIR.")
    model = resolve_elastic(args.source, "demo")
    # A machine slower than the target allows shall still show what it can do.
    asked = SessionArguments(args.source, args.latency, args.preload, length=32, best_effort=True)
    with progress_bar() as on_progress:
        session = asked.open_elastic(model, on_progress)
    with session:
        plan = session.plan
        replies = [session(sentence) for sentence in SENTENCES]
        whole = session.store.manifest.spec.n_layers * plan.shape.n_slices * plan.shape.full_bytes
    if args.json:
        print_json({"plan": plan, "replies": [reply_values(reply, model, session) for reply in replies]})
        return
    typer.echo(f"pliant run {args.source} --latency {args.latency} --preload {args.preload}\n")
    typer.echo(str(plan))
    for sentence, reply in zip(SENTENCES, replies, strict=True):
        show_reply(reply, model, session, sentence)
    typer.echo("")
    show_steps(replies[-1].details)
    held = max(reply.details.resident_weight_bytes for reply in replies)
    typer.echo(
        f"weights in memory: {format_bytes(held)}; all layers at full fidelity would be {format_bytes(whole)}"
    )
