"""Await an answer, and start a second one if the first may be late; the first result counts."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HedgedResult(Generic[T]):
    """The first result, None if neither call gave one; it is from the second call if `is_second`.

    `is_overtaken` is set if the second call ended while the first was still running.
    """

    result: T | None
    is_second: bool = False
    is_overtaken: bool = False


async def call_hedged(
    first: Coroutine[Any, Any, T | None],
    second: Callable[[], Coroutine[Any, Any, T | None]],
    after_s: float,
) -> HedgedResult[T]:
    """The result of `first`, or of `second`, which starts after `after_s` unless the first has ended.

    If one fails or returns None, the other's result is used; if both fail, the first's error is raised.
    `first` runs in the caller's task, which is cancelled if the second overtakes it, so that usually no
    further task is needed. `first` must end when it is cancelled.
    """
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    assert caller is not None
    other: asyncio.Task[T | None] | None = None
    is_awaited, is_overtaken = True, False

    def begin() -> None:
        nonlocal other
        other = loop.create_task(second())
        other.add_done_callback(ended)

    def ended(task: "asyncio.Task[T | None]") -> None:
        nonlocal is_overtaken
        if result_of(task) is not None and is_awaited:
            is_overtaken = True
            caller.cancel()

    timer = loop.call_later(after_s, begin)
    result, failed = None, None
    try:
        try:
            result = await first
        except asyncio.CancelledError:
            if not is_overtaken:
                raise
        except Exception as error:  # noqa: BLE001 - raised below, unless the second has an answer
            failed = error
        is_awaited = False
        timer.cancel()
        if is_overtaken and caller.uncancel():
            raise asyncio.CancelledError  # the caller itself was cancelled as well
        if result is not None or other is None:
            if failed is not None:
                raise failed
            return HedgedResult(result)
        try:
            await asyncio.wait([other])
            return HedgedResult(other.result(), True, is_overtaken)
        except Exception as error:  # noqa: BLE001 - the first error is more relevant
            raise (failed or error) from None
    finally:
        is_awaited = False
        timer.cancel()
        if other is not None:
            other.cancel()


def result_of(task: "asyncio.Future[T | None]") -> T | None:
    """The task's result; None if it failed, and its error is retrieved."""
    return None if task.cancelled() or task.exception() is not None else task.result()
