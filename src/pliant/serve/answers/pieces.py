"""Pieces of work that wait for their turn, run together, and end on the event loop of whoever waits."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pliant.serve.batching.plan_batch import Waiting
from pliant.serve.batching.worker import Worker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A result, what it waited for its turn, and what it took then (seconds).

    Of a batch, each result took what it would have taken alone, or the whole batch where that is less: the
    rest is waiting. `n_together` results came at once, with `is_beside` while other workers worked.
    """

    result: T
    waited_s: float
    spent_s: float
    n_together: int = 1
    is_beside: bool = False


@dataclass(slots=True)
class Turn:
    """When a piece of work began; None while it waits for its turn."""

    begun_s: float | None = None


@dataclass(eq=False, slots=True)
class Piece:
    """Work of one client; `end` is its result or error once it has ended, which `done` awaits.

    `is_displaced` where another takes its place.
    """

    worker: Worker
    one: Any
    waiting: Waiting
    client: str
    turn: Turn
    asked_s: float
    done: "asyncio.Future[None]"
    context: Context
    end: Done[Any] | BaseException | None = None
    is_displaced: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces that are worked on together, since when, and what is expected of them.

    `most` such runs are under way at most, each on one worker; 1 of one that has all threads.
    """

    pieces: tuple[Piece, ...]
    begun_s: float
    expected_s: float
    most: int = 1

    @property
    def is_beside(self) -> bool:
        """Whether others may run meanwhile."""
        return self.most > 1


def end_of(piece: Piece, result: Any, run: Run, spent_s: float) -> Done[Any] | BaseException:
    """What whoever waits for a piece of a run is told."""
    if isinstance(result, BaseException):
        return result
    own_s = spent_s if len(run.pieces) == 1 else min(spent_s, piece.waiting.alone.median_s)
    waited_s = run.begun_s - piece.asked_s + spent_s - own_s
    return Done(result, waited_s, own_s, len(run.pieces), run.is_beside)


def tell(ends: Sequence[tuple[Piece, Done[Any] | BaseException]]) -> None:
    """Those who wait for these pieces are told of their ends, on their event loop."""
    loops = {piece.done.get_loop() for piece, _ in ends}
    for loop in loops:
        here = [(piece, end) for piece, end in ends if piece.done.get_loop() is loop]
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_settle, here)


def _settle(ends: Sequence[tuple[Piece, Done[Any] | BaseException]]) -> None:
    for piece, end in ends:
        piece.end = end
        if not piece.done.done():
            piece.done.set_result(None)
