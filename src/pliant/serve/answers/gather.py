"""Await several answers with limited concurrency."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from pliant.serve.answers.row_group import RowGroup

T = TypeVar("T")


async def gather_rows(ask: Sequence[Callable[[], Awaitable[T]]], group: RowGroup | None) -> list[T]:
    """The results of the rows of `group` in order; None for a request of one row. Raises as `gather`."""
    if group is None:
        return await gather(ask, 1)

    async def row_of(one: Callable[[], Awaitable[T]]) -> T:
        try:
            return await one()
        finally:
            group.finish_row()

    try:
        return await gather([partial(row_of, one) for one in ask], group.n_at_once)
    finally:
        group.close()


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
