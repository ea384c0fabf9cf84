"""`pliant eval`: accuracy and latency of a real session over a TSV."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pliant.api.model import CheckpointModel, ElasticModel, RecurrentNetwork, StoreModel, refused
from pliant.api.resolve import resolve
from pliant.cli.recurrent import evaluate_recurrent, show_evaluation
from pliant.cli.shared.show import print_json, progress_bar, show_truncation
from pliant.cli.shared.text_lines import Reading, Text, Truncate, readable
from pliant.cli.shared.verb_options import Json, SessionArguments, System
from pliant.elastic.evaluate.intervals import accuracy
from pliant.errors import InputError
from pliant.ir.reply import Reply
from pliant.models.examples import Example, read_examples
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.submodel.submodel import Cut
from pliant.quantities import format_bytes, format_seconds
from pliant.run.submodel.details import ElasticDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The options of `pliant eval`."""

    session: SessionArguments
    data: Annotated[
        Path, typer.Argument(help="A TSV of sentences or pairs with labels; - reads standard input.")
    ]
    baseline: System = None
    limit: Annotated[int | None, typer.Option(help="Only the first so many examples.", min=1)] = None
    truncate: Truncate = False
    json: Json = False


def evaluate(args: EvalArguments) -> None:
    """Answer every example of DATA once, one after the other, and say how well and how fast."""
    match resolve(args.session.source):
        case RecurrentNetwork() as model:
            if args.baseline is not None:
                raise InputError("baselines are for models that are planned; a recurrent one is not.")
            report = evaluate_recurrent(
                model, args.session, args.data, args.limit, is_truncating=args.truncate
            )
            (print_json if args.json else show_evaluation)(report)
        case StoreModel() | CheckpointModel() as model:
            report = _evaluate_elastic(model, args)
            (print_json if args.json else _show)(report)
        case model:
            raise refused(model, "pliant eval")


def _evaluate_elastic(model: ElasticModel, args: EvalArguments) -> dict[str, Any]:
    """The report of each example, answered once by a session of ours or of a baseline."""
    with progress_bar() as on_progress:
        session = args.session.open(model, on_progress, args.baseline)
        with session:
            labels = session.store.spec.head.labels or ()
            examples = read_examples(args.data, labels)[: args.limit]
            tokenizer = open_tokenizer(session.store.path, session.store.spec)
            given = (Text(e.text, e.pair, e.where) for e in examples)
            texts = readable(given, Reading(tokenizer.encode, tokenizer.truncate), args.truncate)
            replies = []
            for i, text in enumerate(texts):
                on_progress("answering", i, len(texts))
                replies.append(session(text.text, text.pair))
            planned = (session.plan.n, session.plan.width)
    return _values(examples, replies, labels) | {
        "submodel": list(planned),
        "system": args.baseline or ("paper" if args.session.paper else "ours"),
        "n_truncated": sum(text.is_truncated for text in texts),
    }


def _values(
    examples: tuple[Example, ...], replies: list[Reply[ElasticDetails]], labels: tuple[str, ...]
) -> dict[str, Any]:
    """The report for machines (design.md, "Interfaces")."""
    right = np.array([labels[e.label] == r.label for e, r in zip(examples, replies, strict=True)])
    seconds = np.array([r.seconds for r in replies])
    share = accuracy(right)
    details = [r.details for r in replies]
    ran = Counter((r.details.submodel, r.cut) for r in replies)
    return {
        "accuracy": share.value,
        "accuracy_interval": [share.low, share.high],
        "expected_accuracy": _mean([r.accuracy for r in replies]),
        "n": len(replies),
        "seconds": {
            "median": float(np.median(seconds)),
            "p95": float(np.quantile(seconds, 0.95)),
        },
        "target_s": replies[0].target_s,
        "met_fraction": float(np.mean([r.met for r in replies])),
        "within_reach_fraction": float(np.mean([d.within_reach for d in details])),
        "resident_weight_bytes": max(d.resident_weight_bytes for d in details),
        "arena_bytes": max(d.arena_bytes for d in details),
        "peak_rss_bytes": max(d.peak_rss_bytes for d in details),
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
    seconds = values["seconds"]
    n, m = values["submodel"]
    told = values["expected_accuracy"]
    expected = "" if told is None else f", {100 * told:.2f} % expected"
    ran = ", ".join(_ran(**r) for r in values["submodels_run"])
    typer.echo(
        f"{values['system']}: accuracy {100 * values['accuracy']:.2f} % "
        f"[{100 * low:.2f}, {100 * high:.2f}] of {values['n']} examples{expected}"
    )
    show_truncation(values["n_truncated"])
    typer.echo(
        f"latency: median {format_seconds(seconds['median'])}, 95th percentile "
        f"{format_seconds(seconds['p95'])}, target {format_seconds(values['target_s'])}, met by "
        f"{100 * values['met_fraction']:.1f} %"
    )
    if values["within_reach_fraction"] < 1:
        out = f"{100 - 100 * values['within_reach_fraction']:.1f} %"
        typer.echo(f"no plan kept the target for 95 of 100 when {out} of the answers were asked for")
    typer.echo(
        f"submodel {n}x{m} planned; ran by input length: {ran}; "
        f"{100 * values['reduced_fraction']:.1f} % of runs did without some refinement"
    )
    typer.echo(
        f"weights in memory {format_bytes(values['resident_weight_bytes'])}, activations "
        f"{format_bytes(values['arena_bytes'])}, peak of the process {format_bytes(values['peak_rss_bytes'])}"
    )


def _ran(submodel: list[int], cut: Cut, n: int) -> str:
    untrained = ", untrained" if cut == "untrained" else ""
    return f"{submodel[0]}x{submodel[1]} ({n}{untrained})"
