"""`pliant run`: answer texts under a target and a buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant.api.model import CheckpointModel, ElasticModel, RecurrentNetwork, StoreModel, refused
from pliant.api.resolve import resolve
from pliant.cli.recurrent import run_recurrent
from pliant.cli.shared.show import print_json, progress_bar, reply_values, show_reply, show_steps
from pliant.cli.shared.text_lines import Reading, Text, Truncate, readable, text_lines
from pliant.cli.shared.trace import Trace, kept
from pliant.cli.shared.verb_options import Json, SessionArguments
from pliant.errors import InputError
from pliant.models.tokenizer import open_tokenizer
from pliant.run.trace import write_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The options of `pliant run`."""

    session: SessionArguments
    text: Annotated[str | None, typer.Option(help="The text to answer.")] = None
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None
    input: Annotated[
        Path | None,
        typer.Option(help="A file with one text a line, none of them empty; - reads standard input."),
    ] = None
    truncate: Truncate = False
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also print each step, predicted beside measured.")
    ] = False
    trace: Trace = None
    json: Json = False


def run(args: RunArguments) -> None:
    """Answer text within the target; with --json, one line of JSON a text."""
    if (args.text is None) == (args.input is None) or (args.pair is not None and args.text is None):
        raise InputError("give either --text, alone or with --pair, or --input FILE.")
    texts = (Text(args.text, args.pair),) if args.text is not None else text_lines(args.input or Path())
    match resolve(args.session.source):
        case RecurrentNetwork() as model:
            if args.pair is not None or args.trace is not None or args.timeline:
                raise InputError("a recurrent model reads one text at a time, and has no steps to show.")
            run_recurrent(model, args.session, texts, is_truncating=args.truncate, is_json=args.json)
        case StoreModel() | CheckpointModel() as model:
            _run_elastic(model, args, texts)
        case model:
            raise refused(model, "pliant run")


def _run_elastic(model: ElasticModel, args: RunArguments, texts: Sequence[Text]) -> None:
    """Answer each text within the target, and say how; the trace is that of the last."""
    with progress_bar() as on_progress:
        session = args.session.open(model, on_progress)
    with session:
        tokenizer = open_tokenizer(session.store.path, session.store.spec)
        for line in readable(texts, Reading(tokenizer.encode, tokenizer.truncate), args.truncate):
            reply = session(line.text, line.pair)
            if args.json:
                print_json(reply_values(reply) | {"truncated": line.is_truncated})
            else:
                show_reply(reply, line.text, is_truncated=line.is_truncated)
                if args.timeline:
                    show_steps(reply.details)
    if args.trace is not None:
        with kept(args.trace) as path:
            ran = reply.details
            write_trace(path, ran.program, predicted=ran.predicted_spans, measured=ran.spans)
