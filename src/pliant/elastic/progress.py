"""Show a stretching run as progress bars, one per stage."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pliant.elastic.callbacks import TrainingCallbacks


@contextmanager
def show_progress(console: Console) -> Iterator[TrainingCallbacks]:
    """Yield callbacks that draw on `console`; the loss is smoothed over about 50 steps."""
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {}
        losses: dict[str, float] = {}

        def on_step(stage: str, done: int, total: int, loss: float) -> None:
            losses[stage] = losses.get(stage, loss) * 0.98 + loss * 0.02
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, loss=loss)
            progress.update(tasks[stage], completed=done, loss=losses[stage])

        yield TrainingCallbacks(on_step, console.print)
