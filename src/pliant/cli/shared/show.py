"""Show progress bars, tables and JSON on the terminal."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pliant.api.open_elastic import OnProgress
from pliant.ir.reply import Reply
from pliant.ir.timeline_text import timeline_text
from pliant.quantities import format_bytes, format_seconds
from pliant.run.submodel.details import ElasticDetails
from pliant.run.trace import compare_table


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """Draws on stderr while the context is open, from the first report on."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            kind = what.partition(":")[0]
            if kind not in tasks:
                tasks[kind] = progress.add_task(what, total=total)
            progress.update(tasks[kind], description=what, completed=done, total=total)

        yield on_progress


def print_json(value: Any) -> None:
    """One line of JSON; dataclasses become objects."""
    typer.echo(msgspec.json.encode(value).decode())


def console() -> Console:
    """Standard output: as wide as the terminal, and never too narrow for a table in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=132)


def show_reply(reply: Reply[ElasticDetails], text: str, *, is_truncated: bool = False) -> None:
    """Three lines: the answer; its time against the target; what ran, and how often that is right."""
    ran = reply.details
    out = "" if ran.within_reach else "; out of reach: now no plan keeps this target for 95 of 100 answers"
    cut = ", cut to what the model reads" if is_truncated else ""
    typer.echo(f"{_answer(reply)}  <- {text}")
    target = "" if reply.target_s is None else format_seconds(reply.target_s)
    typer.echo(
        f"  {format_seconds(reply.seconds)} of {target} ({'met' if reply.met else 'MISSED'}), "
        f"{format_seconds(ran.predicted_s)} predicted; {reply.length} tokens{cut}{out}"
    )
    n, m = ran.submodel
    untrained = " (not trained for that: --depths any)" if reply.cut == "untrained" else ""
    typer.echo(f"  {_accuracy(reply)}; {n}x{m}{untrained}, bits by layer {bits_text(ran)}")


def show_truncation(n_texts: int) -> None:
    """How many texts were cut, where any were."""
    if n_texts:
        typer.echo(f"  {n_texts} {'text was' if n_texts == 1 else 'texts were'} cut to what the model reads")


def show_steps(ran: ElasticDetails) -> None:
    """Memory and the bits of every slice; predicted beside measured: the timeline and one row a step."""
    typer.echo(
        f"weights in memory {format_bytes(ran.resident_weight_bytes)}, read "
        f"{format_bytes(ran.read_bytes)}, activations {format_bytes(ran.arena_bytes)}, peak of the "
        f"process {format_bytes(ran.peak_rss_bytes)}"
    )
    typer.echo("bits of each slice, by layer: " + " | ".join(" ".join(map(str, row)) for row in ran.bits))
    typer.echo("measured timeline, by layer (* is embedding and head):")
    typer.echo(timeline_text(ran.program, ran.spans), nl=False)
    console().print(compare_table(ran.program, ran.predicted_spans, ran.spans))


def bits_text(ran: ElasticDetails) -> str:
    """`6 | 4-6 (planned 6)`: for each layer the bits, least to most, of its slices, and those planned."""
    rows = []
    for bits, planned in zip(ran.bits, ran.planned_bits, strict=True):
        wanted = "" if bits == planned else f" (planned {_range(planned)})"
        rows.append(_range(bits) + wanted)
    return " | ".join(rows)


def _range(bits: Sequence[int]) -> str:
    return f"{min(bits)}" if len(set(bits)) == 1 else f"{min(bits)}-{max(bits)}"


def _answer(reply: Reply[Any]) -> str:
    if reply.vector is not None:
        return f"vector of {len(reply.vector)}: [{', '.join(f'{x:.4f}' for x in reply.vector[:4])}, ...]"
    return f"{reply.label} ({reply.score:.3f})" if reply.score is not None else f"{reply.label}"


def _accuracy(reply: Reply[ElasticDetails]) -> str:
    interval = reply.details.accuracy_interval
    if reply.accuracy is None or interval is None:
        return "accuracy not measured"
    return (
        f"accuracy {100 * reply.accuracy:.1f} % expected (95 % interval {100 * interval.low:.1f} to "
        f"{100 * interval.high:.1f} %)"
    )


def reply_values(reply: Reply[ElasticDetails]) -> dict[str, Any]:
    """A reply for machines (design.md, "Interfaces")."""
    ran = reply.details
    return {
        "label": reply.label,
        "score": reply.score,
        "scores": reply.scores,
        "logits": None if reply.logits is None else reply.logits.tolist(),
        "vector": None if reply.vector is None else reply.vector.tolist(),
        "seconds": reply.seconds,
        "predicted_s": ran.predicted_s,
        "target_s": reply.target_s,
        "met": reply.met,
        "within_reach": ran.within_reach,
        "n_tokens": reply.length,
        "submodel": list(ran.submodel),
        "cut": reply.cut,
        "expected_accuracy": reply.accuracy,
        "accuracy_interval": ran.accuracy_interval,
        "bits": ran.bits,
        "planned_bits": ran.planned_bits,
        "resident_weight_bytes": ran.resident_weight_bytes,
        "arena_bytes": ran.arena_bytes,
        "peak_rss_bytes": ran.peak_rss_bytes,
        "read_bytes": ran.read_bytes,
        "spans": ran.spans,
        "predicted_spans": ran.predicted_spans,
    }
