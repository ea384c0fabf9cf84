"""Callbacks that report the progress of a stretching run."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingCallbacks:
    """`on_step(stage, steps done, total steps, loss)` after every step; `on_note(text)` in between."""

    on_step: Callable[[str, int, int, float], None] = lambda stage, done, total, loss: None
    on_note: Callable[[str], None] = lambda text: None
