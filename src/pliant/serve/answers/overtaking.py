"""Await an answer, and a second one once the first may be late; whichever comes first counts."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FirstOfTwo(Generic[T]):
    """`result` is the second's where `is_second`, which then `is_overtaken` where the first had not ended.

    The second `is_begun` where its time came before the first had ended. The result is None where neither
    gave one.
    """

    result: T | None
    is_begun: bool = False
    is_second: bool = False
    is_overtaken: bool = False


async def first_of_two(
    first: Coroutine[Any, Any, T | None],
    second: Callable[[], Coroutine[Any, Any, T | None]],
    after_s: float,
) -> FirstOfTwo[T]:
    """What `first` gives, or `second`, which begins `after_s` seconds later unless the first has ended.

    A failure, or None, of one leaves it to the other; raises the first's where both fail. `first` runs in the
    caller's own task, which is cancelled where the second overtakes it: mostly no other task is needed. It
    must end once it is cancelled.
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
        if _result(task) is not None and is_awaited:
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
            return FirstOfTwo(result, other is not None)
        try:
            await asyncio.wait([other])
            return FirstOfTwo(other.result(), True, True, is_overtaken)
        except Exception as error:  # noqa: BLE001 - the first's says more
            raise (failed or error) from None
    finally:
        is_awaited = False
        timer.cancel()
        if other is not None:
            other.cancel()


def _result(task: "asyncio.Task[T | None]") -> T | None:
    """None also where it failed, which is seen by this."""
    return None if task.cancelled() or task.exception() is not None else task.result()
