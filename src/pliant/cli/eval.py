"""`pliant eval`: accuracy and latency of a real session over labelled examples."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pliant.api.model import ElasticModel, Model
from pliant.cli.shared.feed_file import is_feed_file, labelled_feeds
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.show_reply import show_truncation
from pliant.cli.shared.text_lines import Text, Truncate, check_uncut, readable
from pliant.cli.shared.text_model import best_class, text_model
from pliant.cli.shared.verb_options import Json, SessionArguments, System, resolve_for
from pliant.elastic.evaluate.intervals import accuracy
from pliant.errors import InputError
from pliant.ir.reply import Reply
from pliant.models.examples import read_examples
from pliant.plan.submodel.submodel import Cut
from pliant.quantities import format_bytes, format_seconds
from pliant.run.process_memory import peak_rss_bytes
from pliant.run.session.session import Session
from pliant.run.session.text_session import TextSession
from pliant.run.submodel.details import ElasticDetails
from pliant.run.submodel.elastic_session import ElasticSession

_KEYS = (
    "accuracy", "accuracy_interval", "expected_accuracy", "n", "seconds", "target_s", "met_fraction",
    "within_reach_fraction", "resident_weight_bytes", "arena_bytes", "peak_rss_bytes", "reduced_fraction",
    "submodels_run", "submodel", "system", "n_truncated",
)  # fmt: skip
"""Of a report, in their order; those that only elastic models have are left out for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The options of `pliant eval`."""

    session: SessionArguments
    data: Annotated[
        Path,
        typer.Argument(
            help="A TSV of sentences or pairs with labels, - reads it from standard input; or an .npz of the "
            "model's inputs and `labels`, one row an example."
        ),
    ]
    baseline: System = None
    limit: Annotated[int | None, typer.Option(help="Only the first so many examples.", min=1)] = None
    truncate: Truncate = False
    json: Json = False


@dataclass(frozen=True, slots=True)
class _Answered:
    """The replies to all examples, in their order, and whether each was right."""

    replies: Sequence[Reply[Any]]
    right: Sequence[bool]
    n_truncated: int = 0


_OnProgress = Callable[[int, int], None]


def evaluate(args: EvalArguments) -> None:
    """Answer every example of DATA once, one after the other, and say how well and how fast."""
    model = resolve_for(args.session.source, "eval")
    if not isinstance(model, ElasticModel):
        refuse_options(model, args, ("baseline",))
    with progress_bar() as on_progress:
        session = args.session.open(model, on_progress, args.baseline, takes=("latency",))
        with session:
            ask = _arrays if is_feed_file(args.data) else _texts
            answered = ask(args, model, session, lambda i, n: on_progress("answering", i, n))
            values = _values(args, session, answered)
    if args.json:
        print_json(values)
    else:
        _show(values)


def _texts(args: EvalArguments, model: Model, session: Session[Any], on_progress: _OnProgress) -> _Answered:
    """Of a TSV."""
    asked = text_model(model, session)
    labels = asked.labels or ()
    examples = read_examples(args.data, labels)[: args.limit]
    texts = readable((Text(e.text, e.pair, e.where) for e in examples), asked.reading, args.truncate)
    replies = []
    for i, text in enumerate(texts):
        on_progress(i, len(texts))
        replies.append(asked.answer(text.text, text.pair))
    right = [labels[e.label] == r.label for e, r in zip(examples, replies, strict=True)]
    return _Answered(replies, right, sum(text.is_truncated for text in texts))


def _arrays(args: EvalArguments, model: Model, session: Session[Any], on_progress: _OnProgress) -> _Answered:
    """Of an .npz: the first dimension of every array counts the examples."""
    if isinstance(session, TextSession):
        raise InputError(f"{model.name} is {model.kind}, which reads text: give a TSV, not {args.data}.")
    check_uncut(args.data, args.truncate)
    feeds, labels = labelled_feeds(args.data)
    n = len(labels[: args.limit])
    replies = []
    for i in range(n):
        on_progress(i, n)
        request = session.request({x: a[i : i + 1] for x, a in feeds.items()})
        if i == 0:
            session.answer(request)  # it is compiled now: nobody asked for that time
        replies.append(session.answer(request))
    return _Answered(replies, [best_class(r) == y for r, y in zip(replies, labels[:n], strict=True)])


def _values(args: EvalArguments, session: Session[Any], answered: _Answered) -> dict[str, Any]:
    """The report for machines (design.md, "Interfaces")."""
    replies = [replace(reply, target_s=args.session.target_s) for reply in answered.replies]
    seconds = np.array([r.seconds for r in replies])
    share = accuracy(np.array(answered.right, bool))
    values: dict[str, Any] = {
        "accuracy": share.value,
        "accuracy_interval": [share.low, share.high],
        "n": len(replies),
        "seconds": {"median": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))},
        "target_s": args.session.target_s,
        "met_fraction": None if args.session.target_s is None else float(np.mean([r.met for r in replies])),
        "resident_weight_bytes": session.weight_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "n_truncated": answered.n_truncated,
    }
    if isinstance(session, ElasticSession):
        values |= _elastic_values(replies) | {
            "submodel": [session.plan.n, session.plan.width],
            "system": args.baseline or ("paper" if args.session.paper else "ours"),
        }
    return {key: values[key] for key in _KEYS if key in values}


def _elastic_values(replies: Sequence[Reply[ElasticDetails]]) -> dict[str, Any]:
    details = [reply.details for reply in replies]
    ran = Counter((reply.details.submodel, reply.cut) for reply in replies)
    return {
        "expected_accuracy": _mean([reply.accuracy for reply in replies]),
        "within_reach_fraction": float(np.mean([d.within_reach for d in details])),
        "resident_weight_bytes": max(d.resident_weight_bytes for d in details),
        "arena_bytes": max(d.arena_bytes for d in details),
        "reduced_fraction": float(np.mean([d.bits != d.planned_bits for d in details])),
        "submodels_run": [
            {"submodel": list(nm), "cut": cut, "n": count} for (nm, cut), count in ran.most_common()
        ],
    }


def _mean(expected: list[float | None]) -> float | None:
    """What the grid of accuracy expected of the submodels that ran; None where one was never measured."""
    known = [x for x in expected if x is not None]
    return float(np.mean(known)) if len(known) == len(expected) else None


def _show(values: dict[str, Any]) -> None:
    low, high = values["accuracy_interval"]
    told = values.get("expected_accuracy")
    expected = "" if told is None else f", {100 * told:.2f} % expected"
    system = f"{values['system']}: " if "system" in values else ""
    typer.echo(
        f"{system}accuracy {100 * values['accuracy']:.2f} % "
        f"[{100 * low:.2f}, {100 * high:.2f}] of {values['n']} examples{expected}"
    )
    show_truncation(values["n_truncated"])
    typer.echo(f"latency: {_latency(values)}")
    if values.get("within_reach_fraction", 1) < 1:
        out = f"{100 - 100 * values['within_reach_fraction']:.1f} %"
        typer.echo(f"no plan kept the target for 95 of 100 when {out} of the answers were asked for")
    if "submodel" in values:
        typer.echo(_submodels(values))
    arena = f", activations {format_bytes(values['arena_bytes'])}" if "arena_bytes" in values else ""
    typer.echo(
        f"weights in memory {format_bytes(values['resident_weight_bytes'])}{arena}, peak of the process "
        f"{format_bytes(values['peak_rss_bytes'])}"
    )


def _latency(values: dict[str, Any]) -> str:
    seconds = values["seconds"]
    took = f"median {format_seconds(seconds['median'])}, 95th percentile {format_seconds(seconds['p95'])}"
    if values["target_s"] is None:
        return took
    target = format_seconds(values["target_s"])
    return f"{took}, target {target}, met by {100 * values['met_fraction']:.1f} %"


def _submodels(values: dict[str, Any]) -> str:
    n, m = values["submodel"]
    ran = ", ".join(_ran(**r) for r in values["submodels_run"])
    return (
        f"submodel {n}x{m} planned; ran by input length: {ran}; "
        f"{100 * values['reduced_fraction']:.1f} % of runs did without some refinement"
    )


def _ran(submodel: list[int], cut: Cut, n: int) -> str:
    untrained = ", untrained" if cut == "untrained" else ""
    return f"{submodel[0]}x{submodel[1]} ({n}{untrained})"
