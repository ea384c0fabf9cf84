"""`pliant cluster run`: answer with a model split over the cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pliant.cli.cluster.cluster_options import ModelName, PrimaryArguments
from pliant.cli.cluster.cluster_show import reply_values, show_reply, show_steps
from pliant.cli.shared.feed_file import is_feed_file, read_feeds
from pliant.cli.shared.page_option import Page, show_on_page
from pliant.cli.shared.show import print_json
from pliant.cli.shared.text_lines import (
    InputText,
    TextReader,
    Truncate,
    make_readable,
    refuse_truncation,
    text_lines,
)
from pliant.cli.shared.trace_option import Trace, trace_file
from pliant.cli.shared.verb_options import Json
from pliant.errors import InputError
from pliant.run.trace import write_trace

if TYPE_CHECKING:
    from pliant.cluster.session.cluster_session import ClusterSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRunArguments:
    """The options of `pliant cluster run`."""

    model: ModelName
    primary: PrimaryArguments
    text: Annotated[list[str] | None, typer.Option(help="A text to answer; repeatable.")] = None
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None
    input: Annotated[
        Path | None,
        typer.Option(
            help="File with one text a line and no empty lines, - for standard input; or arrays by "
            "name as .npz or .json: ids and types, pixels, or mel."
        ),
    ] = None
    truncate: Truncate = False
    tokens: Annotated[
        int | None, typer.Option(help="Answer random inputs with this number of rows.", min=1)
    ] = None
    repeat: Annotated[int, typer.Option(help="Number of times to answer each input.", min=1)] = 1
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also print the predicted and measured time of each step.")
    ] = False
    trace: Trace = None
    page: Page = False
    json: Json = False


@dataclass(frozen=True, slots=True)
class _ClusterInput:
    """A text or a pair, or feeds. `text.text` is the text to print."""

    text: InputText
    feeds: dict[str, Any] | None = None


def run(args: ClusterRunArguments) -> None:
    """Answer with a model split over the cluster; with --json, one line of JSON an answer."""
    given = bool(args.text), args.input is not None, args.tokens is not None
    if sum(given) != 1 or (args.pair is not None and len(args.text or ()) != 1):
        raise InputError("give one of --text, one of them with --pair, --input FILE, or --tokens N.")
    questions: list[_ClusterInput] = []
    with (
        args.primary.open(args.model, lambda session: questions.extend(_questions(args, session))) as session,
        show_on_page(session, is_wanted=args.page) as tell,
    ):
        for question in questions * args.repeat:
            text = question.text
            reply = session(text.text, text.pair) if question.feeds is None else session(question.feeds)
            tell(reply)
            if args.json:
                print_json(reply_values(reply) | {"truncated": text.is_truncated})
                continue
            show_reply(reply, text.text, is_truncated=text.is_truncated)
            if args.timeline:
                show_steps(reply)
    if args.trace is not None:
        details = reply.details
        with trace_file(args.trace) as path:
            write_trace(path, details.program, predicted=details.predicted_spans, measured=details.spans)


def _questions(args: ClusterRunArguments, session: "ClusterSession") -> list[_ClusterInput]:
    """Return all inputs, checked before workers are waited for."""
    if args.tokens is not None:
        return [_ClusterInput(InputText(f"{args.tokens} random rows"), session.sample(args.tokens))]
    if args.input is not None and is_feed_file(args.input):
        refuse_truncation(args.input, args.truncate)
        return [_ClusterInput(InputText(str(args.input)), read_feeds(args.input))]
    written = tuple(InputText(text, args.pair) for text in args.text or ())
    given = written or text_lines(args.input or Path())
    texts = make_readable(given, TextReader(session.encode, session.truncate), args.truncate)
    return [_ClusterInput(text) for text in texts]
