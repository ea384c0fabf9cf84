"""Several answers awaited together."""

import asyncio
from functools import partial

import pytest

from pliant.errors import DeadlineError, NodeError
from pliant.serve.answers.gather import gather


@pytest.mark.parametrize("most", [1, 3, 100])
def test_answers_come_in_order_and_no_more_are_under_way(most: int) -> None:
    """Later ones begin when earlier ones have ended, whichever of them."""

    async def run() -> None:
        n_open, highest = 0, 0

        async def ask(number: int) -> int:
            nonlocal n_open, highest
            n_open += 1
            highest = max(highest, n_open)
            for _ in range(1 + 7 * number % 5):
                await asyncio.sleep(0)
            n_open -= 1
            return number

        assert await gather([partial(ask, i) for i in range(20)], most) == list(range(20))
        assert highest == min(most, 20)

    asyncio.run(run())


def test_the_first_failure_ends_the_others_and_is_raised_as_it_was() -> None:
    """With its cause, which tells a deadline from a full queue; those that wait are not begun."""

    async def run() -> None:
        begun, cancelled = [], []

        async def ask(number: int) -> int:
            begun.append(number)
            try:
                await (asyncio.sleep(0) if number == 1 else asyncio.Event().wait())
            except asyncio.CancelledError:
                cancelled.append(number)
                raise
            raise NodeError("late", 503) from DeadlineError("late", 1.0)

        with pytest.raises(NodeError, match="late") as failed:
            await gather([partial(ask, i) for i in range(5)], 3)
        assert isinstance(failed.value.__cause__, DeadlineError)
        assert (begun, sorted(cancelled)) == ([0, 1, 2], [0, 2])

    asyncio.run(run())
