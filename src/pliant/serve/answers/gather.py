"""Await several answers with limited concurrency."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def gather(ask: Sequence[Callable[[], Awaitable[T]]], most: int) -> list[T]:
    """The results of `ask` in order, with at most `most` calls in progress.

    The first failure cancels the others, and is raised.
    """
    found: dict[int, T] = {}
    left = iter(enumerate(ask))

    async def work() -> None:
        for number, one in left:
            found[number] = await one()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(most, len(ask))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [found[number] for number in range(len(ask))]
