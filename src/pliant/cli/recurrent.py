"""`pliant run` and `pliant eval` on recurrent models, which need no plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from pliant.api.load_compiled import shared_pool
from pliant.api.model import RecurrentNetwork
from pliant.cli.shared.show import print_json, show_truncation
from pliant.cli.shared.text_lines import Reading, Text, readable
from pliant.cli.shared.verb_options import SessionArguments
from pliant.elastic.evaluate.intervals import accuracy
from pliant.errors import InputError
from pliant.ir.reply import Reply
from pliant.ir.reply_text import answer_text, time_text
from pliant.models.examples import read_examples
from pliant.quantities import format_bytes, format_seconds
from pliant.run.graph.recurrent_session import RecurrentSession
from pliant.run.process_memory import peak_rss_bytes


def run_recurrent(
    network: RecurrentNetwork,
    args: SessionArguments,
    texts: Sequence[Text],
    *,
    is_truncating: bool,
    is_json: bool,
) -> None:
    """Answer each text, and say how long it took."""
    model, target_s = _open(network, args), args.options.latency_s
    for text in readable(texts, _reading(model), is_truncating):
        reply = _reply(model, text.text, target_s)
        if is_json:
            print_json(_values(model, reply) | {"truncated": text.is_truncated})
        else:
            _show(model, reply, text.text)
            show_truncation(int(text.is_truncated))


def evaluate_recurrent(
    network: RecurrentNetwork,
    args: SessionArguments,
    data: Path,
    limit: int | None,
    *,
    is_truncating: bool,
) -> dict[str, Any]:
    """The report of `pliant eval`, of each example of `data` answered once."""
    model, target_s = _open(network, args), args.options.latency_s
    examples = read_examples(data, model.spec.labels or ())[:limit]
    if any(e.pair is not None for e in examples):
        raise InputError(f"{data} holds pairs; a recurrent model reads one text.")
    given = (Text(e.text, where=e.where) for e in examples)
    texts = readable(given, _reading(model), is_truncating)
    replies = [_reply(model, text.text, target_s) for text in texts]
    labels = model.spec.labels or ()
    right = np.array([labels[e.label] == r.label for e, r in zip(examples, replies, strict=True)])
    seconds = np.array([reply.seconds for reply in replies])
    share = accuracy(right)
    return {
        "accuracy": share.value,
        "accuracy_interval": [share.low, share.high],
        "n": len(replies),
        "seconds": {"median": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))},
        "target_s": target_s,
        "met_fraction": float(np.mean(seconds <= target_s)),
        "resident_weight_bytes": model.weight_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "n_truncated": sum(text.is_truncated for text in texts),
    }


def show_evaluation(values: dict[str, Any]) -> None:
    """The report in three lines."""
    low, high = values["accuracy_interval"]
    seconds = values["seconds"]
    right = 100 * values["accuracy"]
    typer.echo(f"accuracy {right:.2f} % [{100 * low:.2f}, {100 * high:.2f}] of {values['n']} examples")
    show_truncation(values["n_truncated"])
    typer.echo(
        f"latency: median {format_seconds(seconds['median'])}, 95th percentile "
        f"{format_seconds(seconds['p95'])}, target {format_seconds(values['target_s'])}, met by "
        f"{100 * values['met_fraction']:.1f} %"
    )
    typer.echo(
        f"weights in memory {format_bytes(values['resident_weight_bytes'])}, peak of the process "
        f"{format_bytes(values['peak_rss_bytes'])}"
    )


def _open(network: RecurrentNetwork, args: SessionArguments) -> RecurrentSession:
    if args.compute != "fp32":
        raise InputError(f"recurrent models compute in fp32, not {args.compute}.")
    if (args.dilation.compute, args.dilation.io) != (1.0, 1.0):
        raise InputError("recurrent models cannot be dilated here.")
    model = RecurrentSession(network.source, *shared_pool(args.threads), name=network.name)
    model.run({"ids": np.zeros((1, 8), np.int32)})  # the first run touches all weights
    return model


def _reading(model: RecurrentSession) -> Reading:
    return Reading(model.encode, model.truncate)


def _reply(model: RecurrentSession, text: str, target_s: float) -> Reply[None]:
    return model(text, latency=target_s)


def _values(model: RecurrentSession, reply: Reply[None]) -> dict[str, Any]:
    """A reply for machines, with the names of other models' replies (design.md, "Interfaces")."""
    return {
        "label": reply.label,
        "score": reply.score,
        "logits": None if reply.logits is None else reply.logits.tolist(),
        "vector": None if reply.vector is None else reply.vector.tolist(),
        "seconds": reply.seconds,
        "target_s": reply.target_s,
        "met": reply.met,
        "n_tokens": reply.length,
        "has_random_weights": model.source.is_random,
        "resident_weight_bytes": model.weight_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _show(model: RecurrentSession, reply: Reply[None], text: str) -> None:
    random = ", random weights" if model.source.is_random else ""
    typer.echo(f"{answer_text(reply)}  <- {text}")
    typer.echo(
        f"  {time_text(reply)}; {reply.length} words, weights {format_bytes(model.weight_bytes)}{random}"
    )
