"""The first answer counts, whoever gives it; the caller's own cancellation is no overtaking."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from pliant.serve.answers.hedged_call import HedgedResult, call_hedged

Result = str | None | Exception


class Side:
    """One of the two: gives what a test says once that is said."""

    def __init__(self) -> None:
        self.said: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.is_hedged = self.is_cancelled = False

    async def __call__(self) -> str | None:
        self.is_hedged = True
        try:
            said = await self.said
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if isinstance(said, Exception):
            raise said
        return said


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def run(play: Callable[[Side, Side], Coroutine[Any, Any, None]], after_s: float = 0.0) -> HedgedResult[str]:
    """What comes of it while `play` says what either gives."""

    async def work() -> HedgedResult[str]:
        first, second = Side(), Side()
        awaited = asyncio.create_task(call_hedged(first(), second, after_s))
        await turns()
        await play(first, second)
        found = await awaited
        assert not awaited.cancelling()
        await turns()
        assert second.said.done() or not second.is_hedged
        assert second.is_cancelled == (second.is_hedged and second.said.cancelled())
        return found

    return asyncio.run(work())


def saying(*said: tuple[int, Result]) -> Callable[[Side, Side], Coroutine[Any, Any, None]]:
    """Each of the two by its number, in this order."""

    async def play(first: Side, second: Side) -> None:
        while not second.is_hedged:
            await asyncio.sleep(0)
        for number, result in said:
            (first, second)[number].said.set_result(result)
            await turns()

    return play


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([(0, "a")], HedgedResult("a")),
        ([(1, "b")], HedgedResult("b", is_second=True, is_overtaken=True)),
        ([(1, None), (0, "a")], HedgedResult("a")),
        ([(1, ValueError()), (0, "a")], HedgedResult("a")),
        ([(0, None), (1, "b")], HedgedResult("b", is_second=True)),
        ([(0, ValueError()), (1, "b")], HedgedResult("b", is_second=True)),
        ([(0, None), (1, None)], HedgedResult(None, is_second=True)),
    ],
)
def test_the_first_answer_counts_and_a_failure_leaves_it_to_the_other(
    said: list[tuple[int, Result]], found: HedgedResult[str]
) -> None:
    assert run(saying(*said)) == found


@pytest.mark.parametrize("result", ["a", None])
def test_nothing_begins_besides_what_ends_in_time(result: str | None) -> None:
    """No task is made for the second, which would have been for nothing."""

    async def play(first: Side, second: Side) -> None:
        first.said.set_result(result)
        await turns()
        assert not second.is_hedged

    assert run(play, after_s=60.0) == HedgedResult(result)


def test_where_both_fail_the_first_says_why() -> None:
    with pytest.raises(ValueError, match="first"):
        run(saying((0, ValueError("first")), (1, ValueError("second"))))


def test_an_answer_that_comes_as_it_is_overtaken_leaves_no_cancellation_behind() -> None:
    """Both at once: either counts, and what the caller awaits next is not cancelled for it."""

    async def play(first: Side, second: Side) -> None:
        while not second.is_hedged:
            await asyncio.sleep(0)
        second.said.set_result("b")
        first.said.set_result("a")

    assert run(play).result in ("a", "b")


@pytest.mark.parametrize("with_overtaking", [False, True])
def test_a_caller_that_leaves_ends_both(with_overtaking: bool) -> None:
    """Also where the second has its answer in the same moment."""

    async def work() -> None:
        first, second = Side(), Side()
        awaited = asyncio.create_task(call_hedged(first(), second, 0.0))
        while not second.is_hedged:
            await asyncio.sleep(0)
        if with_overtaking:
            second.said.set_result("b")
            await asyncio.sleep(0)
        awaited.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        await turns()
        assert first.is_cancelled
        assert second.is_cancelled or with_overtaking

    asyncio.run(work())


def test_a_caller_that_leaves_while_the_second_is_awaited_is_not_answered() -> None:
    """Though the second, which has begun, swallows it and gives its answer after all."""

    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "late"

    async def work() -> None:
        first = Side()
        awaited = asyncio.create_task(call_hedged(first(), stubborn, 0.0))
        await turns()
        first.said.set_result(None)
        await turns()
        awaited.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        await turns()

    asyncio.run(work())
