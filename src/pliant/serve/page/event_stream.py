"""Server-sent events of the page: answers ten times a second, numbers once, pictures when they change."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from typing import Any, final

import msgspec

from pliant.errors import NodeError
from pliant.serve.node.serving_node import Node
from pliant.serve.page.node_picture import NodePicture, model_picture, numbers

MOST_VIEWERS = 16
"""Pages that may be open at once: each has a connection, and costs the node a little."""
_ANSWERS_S = 0.1
_NUMBERS_EVERY, _PICTURE_EVERY = 10, 50
"""In turns of `_ANSWERS_S`."""
_RETRY_MS = 2000


class Answers(msgspec.Struct, frozen=True):
    """Answers of one model since the last such event; `n_missed` were not kept for so slow a reader."""

    model: str
    n_missed: int
    answers: Sequence[msgspec.Struct]


@final
class EventStream:
    """What all viewers of a process are sent; `nodes` are those that it answers with now."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[Node]],
        version: str,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._nodes, self._version, self._sleep = nodes, version, sleep
        self._n_viewers = 0

    def check_room(self) -> None:
        """Raise NodeError (503) where as many look as may."""
        if self._n_viewers >= MOST_VIEWERS:
            raise NodeError(
                f"{MOST_VIEWERS} pages are open, which is as many as may be; close one.", 503, retry_after_s=5
            )

    async def events(self) -> AsyncIterator[bytes]:
        """The events of one viewer, until it leaves or the node does.

        A viewer that does not read is waited for: it keeps no more than one event, and misses answers.
        """
        self._n_viewers += 1
        try:
            with _Viewer(self._nodes) as viewer:
                yield f"retry: {_RETRY_MS}\n\n".encode()
                turn, shown = 0, b""
                while not any(node.is_draining for node in self._nodes()):
                    viewer.follow()
                    if turn % _PICTURE_EVERY == 0 and len(self._nodes()):
                        picture = msgspec.json.encode(await self._picture())
                        if picture != shown:
                            shown = picture
                            yield _event("picture", picture)
                    if turn % _NUMBERS_EVERY == 0:
                        yield _event("numbers", msgspec.json.encode(numbers(self._nodes())))
                    if batches := viewer.news():
                        yield _event("answers", msgspec.json.encode(batches))
                    turn += 1
                    await self._sleep(_ANSWERS_S)
                yield _event("leaves", b"{}")
        finally:
            self._n_viewers -= 1

    async def _picture(self) -> NodePicture:
        """On a thread: a session that answers is waited for."""
        nodes = tuple(self._nodes())
        models = await asyncio.to_thread(lambda: tuple(model_picture(node) for node in nodes))
        first = nodes[0]
        return NodePicture(first.name, self._version, first.run, first.feed.keeps_texts, models)


@final
class _Viewer:
    """What one viewer has seen of the feeds of all nodes, which keep answers meanwhile."""

    def __init__(self, nodes: Callable[[], Sequence[Node]]) -> None:
        self._nodes = nodes
        self._looks: dict[Node, tuple[ExitStack, int]] = {}

    def __enter__(self) -> "_Viewer":
        self.follow()
        return self

    def __exit__(self, *_: object) -> None:
        for looks, _number in self._looks.values():
            looks.close()

    def follow(self) -> None:
        """Look at nodes that came, and no longer at those that left."""
        now = set(self._nodes())
        for node in self._looks.keys() - now:
            self._looks.pop(node)[0].close()
        for node in now - self._looks.keys():
            looks = ExitStack()
            looks.enter_context(node.feed.viewed())
            self._looks[node] = looks, node.feed.last

    def news(self) -> list[Answers]:
        """What was answered since the last call."""
        found = []
        for node, (looks, number) in self._looks.items():
            answers = node.feed.since(number)
            if answers:
                self._looks[node] = looks, answers[-1].number
                found.append(Answers(node.served.name, answers[0].number - number - 1, answers))
        return found


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
