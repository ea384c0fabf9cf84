"""Show replies of every kind of session: three lines of text, or a JSON object."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import typer

from pliant.api.model import Model, RandomWeights, RecurrentNetwork
from pliant.cli.shared.show import console
from pliant.ir.reply import Reply
from pliant.ir.text.reply_text import accuracy_text, answer_text, time_text
from pliant.ir.text.timeline_text import timeline_text
from pliant.quantities import format_bytes, format_seconds
from pliant.run.session.session import Session
from pliant.run.session.text_session import TextSession
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.trace import compare_table
from pliant.system import peak_rss_bytes


def show_reply(
    reply: Reply[Any], model: Model, session: Session[Any], text: str, *, is_truncated: bool = False
) -> None:
    """Print three lines: the answer; its time and target; the expected accuracy and the submodel that ran."""
    typer.echo(f"{answer_text(reply)}  <- {text}")
    details = reply.details
    if isinstance(details, ElasticDetails):
        typer.echo(f"  {_time(reply, details)}; {_length(reply, 'tokens', is_truncated)}{_out(details)}")
        typer.echo(f"  {_accuracy(reply, details)}; {_submodel(reply, details)}")
        return
    unit = "words" if isinstance(session, TextSession) else "length"
    typer.echo(f"  {time_text(reply)}; {_length(reply, unit, is_truncated)}")
    typer.echo(f"  {accuracy_text(reply)}; weights {format_bytes(session.weight_bytes)}{_random(model)}")


def show_truncation(n_texts: int) -> None:
    """Print how many texts were truncated, if any were."""
    if n_texts:
        typer.echo(
            f"  {n_texts} {'text was' if n_texts == 1 else 'texts were'} truncated to the model's limit"
        )


def show_steps(details: ElasticDetails) -> None:
    """Print memory, the bits of every slice, the timeline, and predicted and measured time of each step."""
    typer.echo(
        f"weights in memory {format_bytes(details.resident_weight_bytes)}, read "
        f"{format_bytes(details.read_bytes)}, activations {format_bytes(details.arena_bytes)}, peak of the "
        f"process {format_bytes(details.peak_rss_bytes)}"
    )
    typer.echo("bits of each slice, by layer: " + " | ".join(" ".join(map(str, row)) for row in details.bits))
    typer.echo("measured timeline, by layer (* is embedding and head):")
    typer.echo(timeline_text(details.program, details.spans), nl=False)
    console().print(compare_table(details.program, details.predicted_spans, details.spans))


def reply_values(reply: Reply[Any], model: Model, session: Session[Any]) -> dict[str, Any]:
    """Return a reply for JSON (design.md, "Interfaces")."""
    if isinstance(reply.details, ElasticDetails):
        return _elastic_values(reply, reply.details)
    times = {"seconds": reply.seconds, "target_s": reply.target_s, "met": reply.met}
    memory = {"resident_weight_bytes": session.weight_bytes, "peak_rss_bytes": peak_rss_bytes()}
    if isinstance(session, TextSession):
        more = {"n_tokens": reply.length, "has_random_weights": _has_random_weights(model)}
        return _answer_values(reply) | times | more | memory
    named = {"label": reply.label, "score": reply.score}
    return named | {"outputs": {y: _numbers(a) for y, a in reply.outputs.items()}} | times | memory


def _answer_values(reply: Reply[Any]) -> dict[str, Any]:
    return {
        "label": reply.label,
        "score": reply.score,
        "logits": None if reply.logits is None else reply.logits.tolist(),
        "vector": None if reply.vector is None else reply.vector.tolist(),
    }


def _elastic_values(reply: Reply[Any], details: ElasticDetails) -> dict[str, Any]:
    return {
        "label": reply.label,
        "score": reply.score,
        "scores": reply.scores,
        "logits": None if reply.logits is None else reply.logits.tolist(),
        "vector": None if reply.vector is None else reply.vector.tolist(),
        "seconds": reply.seconds,
        "predicted_s": details.predicted_s,
        "target_s": reply.target_s,
        "met": reply.met,
        "within_reach": details.within_reach,
        "n_tokens": reply.length,
        "submodel": list(details.submodel),
        "cut": reply.cut,
        "expected_accuracy": reply.accuracy,
        "accuracy_interval": details.accuracy_interval,
        "bits": details.bits,
        "planned_bits": details.planned_bits,
        "resident_weight_bytes": details.resident_weight_bytes,
        "arena_bytes": details.arena_bytes,
        "peak_rss_bytes": details.peak_rss_bytes,
        "read_bytes": details.read_bytes,
        "spans": details.spans,
        "predicted_spans": details.predicted_spans,
    }


def _numbers(array: np.ndarray) -> Any:
    """Return nested lists; bytes become text, and types that numpy does not have become float64."""
    if array.dtype == object:
        return [x.decode(errors="replace") if isinstance(x, bytes) else x for x in array.tolist()]
    return (array if array.dtype.kind in "biufc" else array.astype(np.float64)).tolist()


def bits_text(details: ElasticDetails) -> str:
    """`6 | 4-6 (planned 6)`: for each layer the bits, least to most, of its slices, and those planned."""
    rows = []
    for ran, planned in zip(details.bits, details.planned_bits, strict=True):
        wanted = "" if ran == planned else f" (planned {_range(planned)})"
        rows.append(_range(ran) + wanted)
    return " | ".join(rows)


def _range(bits: Sequence[int]) -> str:
    return f"{min(bits)}" if len(set(bits)) == 1 else f"{min(bits)}-{max(bits)}"


def _time(reply: Reply[Any], details: ElasticDetails) -> str:
    return f"{time_text(reply)}, {format_seconds(details.predicted_s)} predicted"


def _length(reply: Reply[Any], unit: str, is_truncated: bool) -> str:
    cut = ", truncated to the model's limit" if is_truncated else ""
    if unit == "length":
        return f"length {reply.length}"
    return f"{reply.length} {unit.removesuffix('s') if reply.length == 1 else unit}{cut}"


def _out(details: ElasticDetails) -> str:
    return (
        "" if details.within_reach else "; out of reach: no plan now keeps this target for 95 of 100 answers"
    )


def _accuracy(reply: Reply[Any], details: ElasticDetails) -> str:
    interval = details.accuracy_interval
    if reply.accuracy is None or interval is None:
        return accuracy_text(reply)
    return f"{accuracy_text(reply)} (95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f} %)"


def _submodel(reply: Reply[Any], details: ElasticDetails) -> str:
    n, m = details.submodel
    untrained = " (not trained for that: --depths any)" if reply.cut == "untrained" else ""
    return f"{n}x{m}{untrained}, bits by layer {bits_text(details)}"


def _random(model: Model) -> str:
    return ", random weights" if _has_random_weights(model) else ""


def _has_random_weights(model: Model) -> bool:
    return isinstance(model, RecurrentNetwork) and isinstance(model.weights, RandomWeights)
