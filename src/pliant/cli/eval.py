"""`pliant eval`: measure accuracy and latency of a session on labelled examples."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from pliant.api.model import ElasticModel, Model, RecurrentNetwork
from pliant.cli.eval_rows import EvalExample, EvalRow, examples_of, make_asker
from pliant.cli.shared.feed_file import is_feed_file, labelled_feeds
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.show_reply import show_truncation
from pliant.cli.shared.text_lines import InputText, Truncate, make_readable, refuse_truncation
from pliant.cli.shared.text_model import N_EXAMPLES, text_examples, text_model
from pliant.cli.shared.verb_options import Json, SessionArguments, System, precision_of, resolve_for
from pliant.elastic.evaluate.intervals import accuracy_interval
from pliant.errors import InputError
from pliant.ir.times.timing import is_in_time
from pliant.models.examples import LabelledRow, index_labels, read_rows
from pliant.plan.submodel.submodel import CutReason
from pliant.quantities import format_bytes, format_seconds
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_session import ElasticSession

_KEYS = (
    "accuracy", "accuracy_interval", "expected_accuracy", "n", "seconds", "target_s", "met_fraction",
    "within_reach_fraction", "resident_weight_bytes", "arena_bytes", "peak_rss_bytes", "reduced_fraction",
    "submodels_run", "submodel", "system", "n_truncated", "precision",
)  # fmt: skip
"""Keys of a report in their order. Keys of elastic models are left out for other models, and `precision`
without `--compute auto`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The options of `pliant eval`."""

    session: SessionArguments
    data: Annotated[
        Path,
        typer.Argument(
            help="TSV of labelled sentences or pairs, - for standard input; or an .npz of the model's "
            "inputs and `labels`, with one row an example."
        ),
    ]
    baseline: System = None
    limit: Annotated[
        int | None, typer.Option(help="Use only this number of examples, from the start.", min=1)
    ] = None
    truncate: Truncate = False
    on: Annotated[
        Literal["ray"] | None,
        typer.Option(
            help="Run on Ray actors of --threads CPUs each, on the cluster of RAY_ADDRESS or on this "
            "machine (extra `ray`).",
            show_default="this process",
        ),
    ] = None
    actors: Annotated[
        int | None,
        typer.Option(
            help="Number of actors, with --on ray.", min=1, show_default="as many as the CPUs allow"
        ),
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True)
class _LabelledFeeds:
    """The feeds of each example, and its class."""

    items: Sequence[EvalExample]
    labels: np.ndarray


@dataclass(frozen=True, slots=True)
class _ScoredAnswers:
    """The answers to all examples, in their order, and whether each was right."""

    rows: Sequence[EvalRow]
    right: Sequence[bool]
    n_truncated: int = 0


def evaluate(args: EvalArguments) -> None:
    """Answer every example of DATA once, one after the other, and print accuracy and latency."""
    if args.on is None and args.actors is not None:
        raise InputError("--actors needs --on ray: add it, or leave --actors out.")
    model = resolve_for(args.session.source, "eval")
    if not isinstance(model, ElasticModel):
        refuse_options(model, args, ("baseline",))
    read = cache(partial(_read_data, args, model))  # standard input can be read once
    with progress_bar() as on_progress:
        session = args.session.open(
            model,
            on_progress,
            args.baseline,
            takes=("latency",),
            examples=lambda: _examples(args, model, read()),
        )
        with session:
            ask = partial(_rows, args, model, session, lambda i, n: on_progress("answering", i, n))
            data = read()
            if isinstance(data, _LabelledFeeds):
                answered = _arrays(data, ask)
            else:
                answered = _texts(args, model, session, data, ask)
            values = _values(args, session, answered)
    if args.json:
        print_json(values)
    else:
        _show(values)


def _read_data(args: EvalArguments, model: Model) -> tuple[LabelledRow, ...] | _LabelledFeeds:
    """Return the rows of a TSV, or the examples of an .npz, whose arrays have one row for each.

    Raises InputError naming the mistake, and for arrays if the model reads text.
    """
    if not is_feed_file(args.data):
        return read_rows(args.data)
    if isinstance(model, ElasticModel | RecurrentNetwork):
        raise InputError(f"{model.name} is {model.kind}, which reads text: give a TSV, not {args.data}.")
    refuse_truncation(args.data, args.truncate)
    feeds, labels = labelled_feeds(args.data)
    labels = labels[: args.limit]
    return _LabelledFeeds(examples_of(feeds, len(labels)), labels)


def _examples(
    args: EvalArguments, model: Model, data: tuple[LabelledRow, ...] | _LabelledFeeds
) -> Sequence[Any]:
    """Return the first examples, to which `--compute auto` compares answers."""
    if isinstance(data, _LabelledFeeds):
        return data.items[:N_EXAMPLES]
    rows = data[: args.limit][:N_EXAMPLES]
    return text_examples(model, [InputText(row.text, row.pair, row.where) for row in rows], args.truncate)


_Ask = Callable[[Sequence[EvalExample]], Sequence[EvalRow]]


def _rows(
    args: EvalArguments,
    model: Model,
    session: Session[Any],
    on_row: Callable[[int, int], None],
    items: Sequence[EvalExample],
) -> Sequence[EvalRow]:
    """Return the answers, computed here or on Ray."""
    if args.on == "ray":
        from pliant.cli.eval_ray import rows_on_ray  # needs the extra

        options = args.session.with_choice(precision_of(session))  # the same on every actor
        return rows_on_ray(options, args.baseline, items, args.actors, on_row)
    ask = make_asker(model, session, isinstance(items[0], tuple))
    found = []
    for i, item in enumerate(items):
        on_row(i, len(items))
        found.append(ask(item))
    return found


def _texts(
    args: EvalArguments, model: Model, session: Session[Any], data: tuple[LabelledRow, ...], ask: _Ask
) -> _ScoredAnswers:
    """Answer the rows of a TSV."""
    asked = text_model(model, session)
    labels = asked.labels or ()
    examples = index_labels(args.data, data, labels)[: args.limit]
    texts = make_readable(
        (InputText(e.text, e.pair, e.where) for e in examples), asked.reading, args.truncate
    )
    rows = ask([(text.text, text.pair) for text in texts])
    right = [labels[e.label] == row.answer for e, row in zip(examples, rows, strict=True)]
    return _ScoredAnswers(rows, right, sum(text.is_truncated for text in texts))


def _arrays(data: _LabelledFeeds, ask: _Ask) -> _ScoredAnswers:
    """Answer the examples of an .npz."""
    rows = ask(data.items)
    return _ScoredAnswers(rows, [row.answer == y for row, y in zip(rows, data.labels, strict=True)])


def _values(args: EvalArguments, session: Session[Any], answered: _ScoredAnswers) -> dict[str, Any]:
    """The report for machines (design.md, "Interfaces")."""
    rows, target_s = answered.rows, args.session.target_s
    seconds = np.array([row.seconds for row in rows])
    share = accuracy_interval(np.array(answered.right, bool))
    met = None if target_s is None else float(np.mean([is_in_time(row.seconds, target_s) for row in rows]))
    values: dict[str, Any] = {
        "accuracy": share.value,
        "accuracy_interval": [share.low, share.high],
        "n": len(rows),
        "seconds": {"median": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))},
        "target_s": target_s,
        "met_fraction": met,
        "resident_weight_bytes": session.weight_bytes,
        "peak_rss_bytes": max(row.peak_rss_bytes for row in rows),
        "n_truncated": answered.n_truncated,
    }
    if isinstance(session, ElasticSession):
        values |= _elastic_values(rows) | {
            "submodel": [session.plan.n, session.plan.width],
            "system": args.baseline or ("paper" if args.session.paper else "ours"),
        }
    if (choice := precision_of(session)) is not None:
        values["precision"] = choice
    return {key: values[key] for key in _KEYS if key in values}


def _elastic_values(rows: Sequence[EvalRow]) -> dict[str, Any]:
    elastic = [row.elastic for row in rows if row.elastic is not None]
    ran = Counter((row.submodel, row.cut) for row in elastic)
    return {
        "expected_accuracy": _mean([row.accuracy for row in rows]),
        "within_reach_fraction": float(np.mean([row.within_reach for row in elastic])),
        "resident_weight_bytes": max(row.resident_weight_bytes for row in elastic),
        "arena_bytes": max(row.arena_bytes for row in elastic),
        "reduced_fraction": float(np.mean([row.is_reduced for row in elastic])),
        "submodels_run": [
            {"submodel": list(nm), "cut": cut, "n": count} for (nm, cut), count in ran.most_common()
        ],
    }


def _mean(expected: list[float | None]) -> float | None:
    """Return the mean expected accuracy of the submodels that ran; None if one was not measured."""
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
    if "precision" in values:
        typer.echo("\n".join(values["precision"].reasons))
    show_truncation(values["n_truncated"])
    typer.echo(f"latency: {_latency(values)}")
    if values.get("within_reach_fraction", 1) < 1:
        out = f"{100 - 100 * values['within_reach_fraction']:.1f} %"
        typer.echo(f"for {out} of the answers no plan kept the target for 95 of 100")
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
        f"{100 * values['reduced_fraction']:.1f} % of runs left out late bit-planes"
    )


def _ran(submodel: list[int], cut: CutReason, n: int) -> str:
    untrained = ", untrained" if cut == "untrained" else ""
    return f"{submodel[0]}x{submodel[1]} ({n}{untrained})"
