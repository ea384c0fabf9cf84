"""`pliant run` and `pliant eval` on recurrent models, which need no plan."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from pliant.models.examples import read_examples
from pliant.quantities import format_bytes, format_seconds
from pliant.run.graph.recurrent_session import RecurrentAnswer, RecurrentModel
from pliant.run.process_memory import peak_rss_bytes


@dataclass(frozen=True, slots=True)
class _Timed:
    """An answer, and the seconds from text to it."""

    answer: RecurrentAnswer
    seconds: float


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
        timed = _timed(model, text.text)
        if is_json:
            print_json(_values(model, timed, target_s) | {"truncated": text.is_truncated})
        else:
            _show(model, timed, target_s, text.text)
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
    timed = [_timed(model, text.text) for text in texts]
    labels = model.spec.labels or ()
    right = np.array([labels[e.label] == t.answer.label for e, t in zip(examples, timed, strict=True)])
    seconds = np.array([t.seconds for t in timed])
    share = accuracy(right)
    return {
        "accuracy": share.value,
        "accuracy_interval": [share.low, share.high],
        "n": len(timed),
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


def _open(network: RecurrentNetwork, args: SessionArguments) -> RecurrentModel:
    if args.compute != "fp32":
        raise InputError(f"recurrent models compute in fp32, not {args.compute}.")
    if (args.dilation.compute, args.dilation.io) != (1.0, 1.0):
        raise InputError("recurrent models cannot be dilated here.")
    model = RecurrentModel(network.source, *shared_pool(args.threads))
    model.answer(np.zeros(8, np.int32))  # the first run touches all weights
    return model


def _reading(model: RecurrentModel) -> Reading:
    def check(text: str, pair: str | None) -> None:
        model.source.read(text)

    def truncate(text: str, pair: str | None) -> tuple[str, str | None]:
        return model.source.truncate(text), pair

    return Reading(check, truncate)


def _timed(model: RecurrentModel, text: str) -> _Timed:
    start = time.perf_counter()
    answer = model(text)
    return _Timed(answer, time.perf_counter() - start)


def _values(model: RecurrentModel, timed: _Timed, target_s: float) -> dict[str, Any]:
    """A reply for machines, with the names of other models' replies (design.md, "Interfaces")."""
    answer = timed.answer
    is_classifier = answer.label is not None
    return {
        "label": answer.label,
        "score": answer.score,
        "logits": answer.logits.tolist() if is_classifier else None,
        "vector": None if is_classifier else answer.logits.tolist(),
        "seconds": timed.seconds,
        "target_s": target_s,
        "met": timed.seconds <= target_s,
        "n_tokens": answer.n_tokens,
        "has_random_weights": model.source.is_random,
        "resident_weight_bytes": model.weight_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _show(model: RecurrentModel, timed: _Timed, target_s: float, text: str) -> None:
    answer = timed.answer
    if answer.label is None:
        said = f"vector of {len(answer.logits)}: [{', '.join(f'{x:.4f}' for x in answer.logits[:4])}, ...]"
    else:
        said = f"{answer.label} ({answer.score:.3f})"
    verdict = "met" if timed.seconds <= target_s else "MISSED"
    random = ", random weights" if model.source.is_random else ""
    typer.echo(f"{said}  <- {text}")
    typer.echo(
        f"  {format_seconds(timed.seconds)} of {format_seconds(target_s)} ({verdict}); "
        f"{answer.n_tokens} words, weights {format_bytes(model.weight_bytes)}{random}"
    )
