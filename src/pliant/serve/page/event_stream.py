"""Server-sent events of the page: made once for all viewers, five times a second."""

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
from pliant.serve.node.serving_node import Node
from pliant.serve.page.answer_feed import AnswerEvent
from pliant.serve.page.node_picture import NodePicture, model_picture, numbers

MOST_VIEWERS = 16
"""Pages that may be open at once: each has a connection, and costs the node a little."""
PERIOD_S = 0.2
_NUMBERS_EVERY, _PICTURE_EVERY = 5, 50
"""In frames: counts each second; what seldom changes, and costs the node more, every ten."""
_N_FRAMES = 25
"""Frames that a viewer may be behind before it misses some: five seconds."""
_RETRY_MS = 2000


class Answers(msgspec.Struct, frozen=True):
    """Answers of one model since the last such event, a row each (see `_row`), by their numbers.

    Another `run` of the model, one that was loaded anew, counts from 1 again.
    """

    model: str
    run: str
    answers: Sequence[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class ShownProcess:
    """A process that the page shows: `nodes` are those of its models now, which come and go."""

    name: str
    version: str
    nodes: Callable[[], Sequence[Node]]
    is_draining: Callable[[], bool]


@final
class EventStream:
    """What all viewers of a process are sent. Nothing runs and nothing is kept while nobody looks.

    Call on one event loop.
    """

    _shown: bytes

    def __init__(self, shown: ShownProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._process, self._nodes, self._clock = shown, shown.nodes, clock
        self._run = secrets.token_hex(8)
        self._n_viewers = 0
        self._forget()

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Somebody looks, until the context ends. Raises NodeError (503) where as many look as may."""
        if self._n_viewers >= MOST_VIEWERS:
            raise NodeError(
                f"{MOST_VIEWERS} pages are open, which is as many as may be; close one.", 503, retry_after_s=5
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
        """The events of one viewer, until it leaves or the node does; within `viewed`.

        A viewer that does not read is waited for, and misses answers where it is too slow.
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
        self._looking: asyncio.Task[bytes] | None = None

    def _make_frame(self) -> None:
        """What happened since the last one, for all viewers."""
        self._next_s = self._clock() + PERIOD_S
        self._n_frames += 1
        is_new_model = self._feeds.follow()
        if self._looking is None and (is_new_model or self._n_frames % _PICTURE_EVERY == 0):
            self._looking = asyncio.create_task(self._picture())
        frame = b""
        if self._looking is not None and self._looking.done():
            picture, self._looking = self._looking.result(), None
            if picture != self._shown:
                self._shown = picture
                frame = _event("picture", picture)
        if self._n_frames % _NUMBERS_EVERY == 0:
            frame += self._numbers()
        if batches := self._feeds.news():
            frame += _event("answers", msgspec.json.encode(batches))
        self._frames.append(frame)

    def _numbers(self) -> bytes:
        found = numbers(self._nodes(), self._process.is_draining())
        return _event("numbers", msgspec.json.encode(found))

    async def _picture(self) -> bytes:
        """On a thread: a session that answers is waited for."""
        nodes, process = tuple(self._nodes()), self._process
        models = await asyncio.to_thread(lambda: tuple(model_picture(node) for node in nodes))
        keeps_texts = any(node.feed.keeps_texts for node in nodes)
        found = NodePicture(process.name, process.version, self._run, keeps_texts, models)
        return msgspec.json.encode(found)


@final
class _Feeds:
    """The feeds of all nodes, which keep answers while they are looked at, and how far they were read."""

    def __init__(self, nodes: Callable[[], Sequence[Node]]) -> None:
        self._nodes = nodes
        self._looks: dict[Node, tuple[ExitStack, int]] = {}

    def close(self) -> None:
        for looks, _number in self._looks.values():
            looks.close()
        self._looks.clear()

    def follow(self) -> bool:
        """Look at nodes that came, and no longer at those that left; whether there were such."""
        now = set(self._nodes())
        gone, new = self._looks.keys() - now, now - self._looks.keys()
        for node in gone:
            self._looks.pop(node)[0].close()
        for node in new:
            looks = ExitStack()
            looks.enter_context(node.feed.viewed())
            self._looks[node] = looks, node.feed.last
        return bool(gone or new)

    def news(self) -> list[Answers]:
        """What was answered since the last call."""
        found = []
        for node, (looks, number) in self._looks.items():
            if answers := node.feed.since(number):
                self._looks[node] = looks, answers[-1].number
                found.append(Answers(node.served.name, node.run, [_row(one) for one in answers]))
        return found


def _row(event: AnswerEvent) -> tuple[object, ...]:
    """What all viewers draw of an answer, rounded; `/v2/pliant/answer` has the rest."""
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
