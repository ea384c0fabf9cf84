"""`pliant run`: answer texts or arrays, under a latency target and a memory limit if the model has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.api.model import CompiledProgram, ElasticModel, Model, OnnxGraph
from pliant.cli.shared.feed_file import is_feed_file, read_feeds
from pliant.cli.shared.page_option import Page, show_on_page
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.show_reply import reply_values, show_reply, show_steps
from pliant.cli.shared.text_lines import InputText, Truncate, make_readable, refuse_truncation, text_lines
from pliant.cli.shared.text_model import text_examples, text_model
from pliant.cli.shared.trace_option import Trace, trace_file
from pliant.cli.shared.verb_options import Json, SessionArguments, precision_of, resolve_for
from pliant.errors import InputError
from pliant.ir.reply import Reply
from pliant.run.session.call_profile import Profile
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.trace import write_trace

TextReply = tuple[InputText, Reply[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The options of `pliant run`."""

    session: SessionArguments
    text: Annotated[list[str] | None, typer.Option(help="A text to answer; repeatable.")] = None
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None
    input: Annotated[
        Path | None,
        typer.Option(
            help="File with one text a line and no empty lines; or arrays by name as .npz or .json; - "
            "for standard input."
        ),
    ] = None
    truncate: Truncate = False
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also print the predicted and measured time of each step.")
    ] = False
    trace: Trace = None
    page: Page = False
    json: Json = False


def run(args: RunArguments) -> None:
    """Answer text or arrays; with --json, one line of JSON for each answer."""
    if bool(args.text) == (args.input is not None) or (args.pair is not None and len(args.text or ()) != 1):
        raise InputError("give either --text, one of them with --pair, or --input FILE.")
    model = resolve_for(args.session.source, "run")
    texts, feeds = _inputs(args, model)
    with progress_bar() as on_progress:
        session = args.session.open(
            model, on_progress, takes=("latency",), examples=lambda: _examples(args, model, texts, feeds)
        )
    choice = precision_of(session)
    if choice is not None and not args.json:
        typer.echo("\n".join(choice.reasons))
    with session, show_on_page(session, is_wanted=args.page) as tell:
        answers = _to_texts(args, model, session, texts) if feeds is None else _to_feeds(args, session, feeds)
        for asked, reply in answers:
            tell(replace(reply, target_s=args.session.target_s))
            _show(args, model, session, asked, replace(reply, target_s=args.session.target_s))
    if args.trace is not None:
        with trace_file(args.trace) as path:
            _write_trace(path, reply.details)


def _write_trace(path: Path, details: ElasticDetails | Profile) -> None:
    match details:
        case ElasticDetails():
            write_trace(path, details.program, predicted=details.predicted_spans, measured=details.spans)
        case Profile():
            details.write_trace(path)


def _inputs(args: RunArguments, model: Model) -> tuple[tuple[InputText, ...], Mapping[str, Any] | None]:
    """Return the texts or feeds to answer; they are read before the model is opened."""
    if args.text:
        return tuple(InputText(text, args.pair) for text in args.text), None
    path = args.input or Path()
    if is_feed_file(path) or (path == Path("-") and isinstance(model, OnnxGraph | CompiledProgram)):
        refuse_truncation(path, args.truncate)
        return (), read_feeds(path)
    return text_lines(path), None


def _examples(
    args: RunArguments, model: Model, texts: tuple[InputText, ...], feeds: Mapping[str, Any] | None
) -> tuple[Any, ...]:
    """Return the first inputs, to which `--compute auto` compares answers; a text encoder compares texts."""
    if feeds is None:
        return text_examples(model, texts, args.truncate)
    return () if isinstance(model, ElasticModel) else (feeds,)


def _to_texts(
    args: RunArguments, model: Model, session: Session[Any], texts: tuple[InputText, ...]
) -> Iterator[TextReply]:
    is_traced = not isinstance(model, ElasticModel) and _wants_spans(args)
    asked = text_model(model, session, is_traced=is_traced)
    for line in make_readable(texts, asked.reading, args.truncate):
        yield line, asked.answer(line.text, line.pair)


def _to_feeds(args: RunArguments, session: Session[Any], feeds: Mapping[str, Any]) -> Iterator[TextReply]:
    request = session.request(feeds)
    session.answer(request)  # compiles for this shape, which is not part of the measured time
    ask = session.traced if _wants_spans(args) else session.answer
    yield InputText(", ".join(feeds)), ask(request)


def _wants_spans(args: RunArguments) -> bool:
    return args.timeline or args.trace is not None


def _show(
    args: RunArguments, model: Model, session: Session[Any], asked: InputText, reply: Reply[Any]
) -> None:
    if args.json:
        values = reply_values(reply, model, session)
        choice = precision_of(session)
        how = {} if choice is None else {"precision": choice}
        print_json(values | {"truncated": asked.is_truncated, "memory": session.memory} | how)
        return
    show_reply(reply, model, session, asked.text, is_truncated=asked.is_truncated)
    if args.timeline and isinstance(reply.details, ElasticDetails):
        show_steps(reply.details)
        typer.echo(str(session.memory), nl=False)
    elif args.timeline:
        typer.echo(str(reply.details))
