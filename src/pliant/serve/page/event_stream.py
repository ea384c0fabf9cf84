"""Server-sent events of the page: built five times a second, once for all viewers."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import final

import msgspec

from pliant.errors import NodeError
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.page.answer_feed import AnswerEvent
from pliant.serve.page.node_picture import NodePicture, model_key, model_picture, numbers

MOST_VIEWERS = 16
"""Maximum number of open pages: each has a connection and some cost."""
PERIOD_S = 0.2
_NUMBERS_EVERY, _PICTURE_EVERY = 5, 50
"""Intervals in frames: counts every second; rarely changing data, which costs more, every ten seconds."""
_N_FRAMES = 25
"""Frames kept: a viewer more than five seconds behind misses some."""
_RETRY_MS = 2000


class ModelAnswers(msgspec.Struct, frozen=True):
    """Answers of the model with the key `model` since the last event, as rows (see `_row`).

    After the model is reloaded, a new `run` counts from 1 again.
    """

    model: str
    run: str
    answers: Sequence[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class PageProcess:
    """A process that the page shows; `nodes` returns the current nodes of its models."""

    name: str
    version: str
    nodes: Callable[[], Sequence[ServingNode]]
    is_draining: Callable[[], bool]


@final
class EventStream:
    """The event stream to all viewers of a process. Without viewers, nothing runs and nothing is kept.

    Call on one event loop.
    """

    _shown: bytes

    def __init__(self, shown: PageProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._process, self._nodes, self._clock = shown, shown.nodes, clock
        self._run = secrets.token_hex(8)
        self._n_viewers = 0
        self._forget()

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Register a viewer until the context ends.

        Raises NodeError (503) at the maximum number of viewers.
        """
        if self._n_viewers >= MOST_VIEWERS:
            raise NodeError(
                f"{MOST_VIEWERS} pages are open, which is the maximum; close one.", 503, retry_after_s=5
            )
        self._n_viewers += 1
        try:
            yield
        finally:
            self._n_viewers -= 1
            if not self._n_viewers:
                self._feeds.close()
                self._forget()

    async def events(self) -> AsyncIterator[bytes]:
        """The events of one viewer, until it disconnects or the node drains; use within `viewed`.

        The stream waits for a viewer that does not read; a viewer that is too slow misses answers.
        """
        yield f"retry: {_RETRY_MS}\n\n".encode()
        self._feeds.follow()
        if not self._shown:
            self._shown = await self._picture()
        yield _event("picture", self._shown) + self._numbers()
        seen = self._n_frames
        while not self._process.is_draining():
            await asyncio.sleep(self._next_s - self._clock())
            if self._clock() >= self._next_s:
                self._make_frame()
            n_new = min(self._n_frames - seen, len(self._frames))
            seen = self._n_frames
            if news := b"".join(islice(self._frames, len(self._frames) - n_new, None)):
                yield news
        yield _event("leaves", b"{}")

    def _forget(self) -> None:
        self._feeds = _Feeds(self._nodes)
        self._frames: deque[bytes] = deque(maxlen=_N_FRAMES)
        self._n_frames = 0
        self._next_s = self._clock()
        self._shown = b""
        self._picture_task: asyncio.Task[bytes] | None = None

    def _make_frame(self) -> None:
        """Build the frame of events since the last one, for all viewers."""
        self._next_s = self._clock() + PERIOD_S
        self._n_frames += 1
        is_new_model = self._feeds.follow()
        if self._picture_task is None and (is_new_model or self._n_frames % _PICTURE_EVERY == 0):
            self._picture_task = asyncio.create_task(self._picture())
        frame = b""
        if self._picture_task is not None and self._picture_task.done():
            picture, self._picture_task = self._picture_task.result(), None
            if picture != self._shown:
                self._shown = picture
                frame = _event("picture", picture)
        if self._n_frames % _NUMBERS_EVERY == 0:
            frame += self._numbers()
        if batches := self._feeds.take_answers():
            frame += _event("answers", msgspec.json.encode(batches))
        self._frames.append(frame)

    def _numbers(self) -> bytes:
        found = numbers(self._nodes(), self._process.is_draining())
        return _event("numbers", msgspec.json.encode(found))

    async def _picture(self) -> bytes:
        """Build the picture on a thread, because it may wait for a running session."""
        nodes, process = tuple(self._nodes()), self._process
        models = await asyncio.to_thread(lambda: tuple(model_picture(node) for node in nodes))
        keeps_texts = any(node.feed.keeps_texts for node in nodes)
        found = NodePicture(process.name, process.version, self._run, keeps_texts, models)
        return msgspec.json.encode(found)


@final
class _Feeds:
    """The feeds of all nodes, which keep answers while they are viewed, and the read positions."""

    def __init__(self, nodes: Callable[[], Sequence[ServingNode]]) -> None:
        self._nodes = nodes
        self._views: dict[ServingNode, tuple[ExitStack, int]] = {}

    def close(self) -> None:
        for view, _number in self._views.values():
            view.close()
        self._views.clear()

    def follow(self) -> bool:
        """Follow new nodes and drop removed ones; returns whether there were any."""
        now = set(self._nodes())
        gone, new = self._views.keys() - now, now - self._views.keys()
        for node in gone:
            self._views.pop(node)[0].close()
        for node in new:
            view = ExitStack()
            view.enter_context(node.feed.viewed())
            self._views[node] = view, node.feed.last
        return bool(gone or new)

    def take_answers(self) -> list[ModelAnswers]:
        """The answers since the last call."""
        found = []
        for node, (view, number) in self._views.items():
            if answers := node.feed.events_since(number):
                self._views[node] = view, answers[-1].number
                found.append(ModelAnswers(model_key(node), node.run, [_row(one) for one in answers]))
        return found


def _row(event: AnswerEvent) -> tuple[object, ...]:
    """The rounded values that all viewers draw; `/v2/pliant/answer` returns the rest."""
    return (
        event.number,
        round(event.at_s, 3),
        event.length,
        event.target,
        event.outcome,
        round(event.seconds, 6),
        round(event.waited_s, 6),
        event.deadline_s,
        event.met,
        event.accuracy,
    )


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
