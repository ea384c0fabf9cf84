"""Progress bars, tables and JSON on the terminal. Knows replies and plans, not how they are made."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pliant.api.open_elastic import OnProgress
from pliant.plan.result import Plan, plan_text
from pliant.plan.submodel.lower_plan import lower_plan
from pliant.quantities import format_bytes, format_seconds
from pliant.run.submodel.reply import Reply
from pliant.run.trace import compare_table, timeline_text


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


def show_plan(plan: Plan, is_explained: bool = True) -> None:
    """The plan, why, its predicted timeline and its memory."""
    text = plan_text(plan)
    if not is_explained:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("  - "))
    typer.echo(text, nl=False)
    typer.echo("predicted timeline, by layer (* is embedding and head):")
    typer.echo(timeline_text(lower_plan(plan), plan.spans), nl=False)
    memory = plan.memory
    typer.echo(
        f"memory: weights {format_bytes(memory.weight_bytes)} ({format_bytes(memory.preload_bytes)} kept "
        f"between runs), activations {format_bytes(memory.arena_bytes)}"
    )


def show_reply(reply: Reply, text: str) -> None:
    """The answer, its time against the target, and what ran, in a few lines."""
    if reply.vector is not None:
        head = ", ".join(f"{x:.4f}" for x in reply.vector[:4])
        answer = f"vector of {len(reply.vector)}: [{head}, ...]"
    else:
        answer = f"{reply.label} ({reply.score:.3f})" if reply.score is not None else f"{reply.label}"
    verdict = "met" if reply.met else "MISSED"
    n, m = reply.submodel
    typer.echo(f"{answer}  <- {text}")
    typer.echo(
        f"  {format_seconds(reply.seconds)} of {format_seconds(reply.target_s)} ({verdict}); predicted "
        f"{format_seconds(reply.predicted_s)}; {reply.n_tokens} tokens, {n}x{m}"
    )
    if not reply.within_reach:
        typer.echo("  out of reach: by the latest answers no plan keeps this target for 95 of 100")
    interval = reply.accuracy_interval
    if reply.expected_accuracy is not None and interval is not None:
        typer.echo(
            f"  expected accuracy {100 * reply.expected_accuracy:.1f} % (95 % interval "
            f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %)"
        )
    if reply.cut == "untrained":
        typer.echo("  layers left out of a model that was not trained for it: --depths any was asked for")
    typer.echo(f"  bits by layer: {bits_text(reply)}")
    typer.echo(
        f"  weights in memory {format_bytes(reply.resident_weight_bytes)}, read "
        f"{format_bytes(reply.read_bytes)}, activations {format_bytes(reply.arena_bytes)}, peak of the "
        f"process {format_bytes(reply.peak_rss_bytes)}"
    )


def show_truncation(n_texts: int) -> None:
    """How many texts were cut, where any were."""
    if n_texts:
        typer.echo(f"  {n_texts} {'text was' if n_texts == 1 else 'texts were'} cut to what the model reads")


def show_steps(reply: Reply) -> None:
    """Predicted beside measured: the timelines and one row a step."""
    typer.echo("measured timeline:")
    typer.echo(timeline_text(reply.program, reply.spans), nl=False)
    console().print(compare_table(reply.program, reply.predicted_spans, reply.spans))


def bits_text(reply: Reply) -> str:
    """`6 | 32 32 4`: one entry a layer, one number where all its shards ran alike; planned in brackets."""
    rows = []
    for ran, planned in zip(reply.bits, reply.planned_bits, strict=True):
        cells = f"{ran[0]}" if len(set(ran)) == 1 else " ".join(map(str, ran))
        wanted = "" if ran == planned else f" (planned {' '.join(map(str, planned))})"
        rows.append(cells + wanted)
    return " | ".join(rows)


def reply_values(reply: Reply) -> dict[str, Any]:
    """A reply for machines (design.md, "Interfaces")."""
    return {
        "label": reply.label,
        "score": reply.score,
        "scores": reply.scores,
        "logits": None if reply.logits is None else reply.logits.tolist(),
        "vector": None if reply.vector is None else reply.vector.tolist(),
        "seconds": reply.seconds,
        "predicted_s": reply.predicted_s,
        "target_s": reply.target_s,
        "met": reply.met,
        "within_reach": reply.within_reach,
        "n_tokens": reply.n_tokens,
        "submodel": list(reply.submodel),
        "cut": reply.cut,
        "expected_accuracy": reply.expected_accuracy,
        "accuracy_interval": reply.accuracy_interval,
        "bits": reply.bits,
        "planned_bits": reply.planned_bits,
        "resident_weight_bytes": reply.resident_weight_bytes,
        "arena_bytes": reply.arena_bytes,
        "peak_rss_bytes": reply.peak_rss_bytes,
        "read_bytes": reply.read_bytes,
        "spans": reply.spans,
        "predicted_spans": reply.predicted_spans,
    }
