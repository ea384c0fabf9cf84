"""A request with several rows is admitted or refused as one."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pliant.errors import NodeError
from pliant.ir.times.timing import Timing
from pliant.serve.answers.row_group import RowGroup
from pliant.serve.batching.plan_batch import QueuedRequest
from tests.serve.answers.test_admission import Busy, Shouting, asked, busy


def ask_rows(
    made: Busy, group: RowGroup, n: int, waiting: QueuedRequest, client: str = "b"
) -> "list[asyncio.Task[Any]]":
    worker = Shouting()
    rows = [made.admission.submit(worker, f"row {i}", waiting, client, group=group) for i in range(n)]
    return [asyncio.create_task(row) for row in rows]


def test_a_request_whose_rows_have_no_time_together_displaces_no_other() -> None:
    """Its first rows took the place of a longer request, and then its last row was refused."""

    async def run() -> None:
        async with busy(8) as (made, first):
            long = QueuedRequest(Timing(4.0, 4.0), due_s=10.0, key="any")
            other = asyncio.create_task(made.admission.submit(Shouting(), "long", long, "b"))
            await asyncio.sleep(0)
            rows = ask_rows(made, RowGroup(3, 3), 3, QueuedRequest(Timing(2.0, 2.0), due_s=6.0, key="any"))
            ends = await asyncio.gather(*rows, return_exceptions=True)
            assert all(isinstance(end, NodeError) for end in ends)
            made.gate.set()
            assert (await other).result == "LONG"
            await first

    asyncio.run(run())


def test_a_request_that_finds_no_place_for_all_its_rows_displaces_no_other() -> None:
    """Each row took a place of the client with the most, until the share was used up; then all failed."""

    async def run() -> None:
        async with busy(4) as (made, first):
            others = await asked(made, *"aaaa")
            assert made.admission.has_room("b", RowGroup(2, 2))
            assert not made.admission.has_room("b", RowGroup(4, 4))
            rows = ask_rows(made, RowGroup(4, 4), 4, QueuedRequest(Timing(1.0, 1.0), key="any"))
            ends = await asyncio.gather(*rows, return_exceptions=True)
            assert all(isinstance(end, NodeError) for end in ends)
            assert not any(task.done() for task in others)
            made.gate.set()
            await asyncio.gather(first, *others)

    asyncio.run(run())


def test_an_admitted_request_has_places_and_time_for_its_other_rows() -> None:
    """What came between its rows made the later ones late, or filled the queue before them."""

    async def run() -> None:
        async with busy(3) as (made, first):
            waiting = QueuedRequest(Timing(1.0, 1.0), due_s=8.0, key="any")
            group = RowGroup(3, 2)
            rows = ask_rows(made, group, 1, waiting)
            await asyncio.sleep(0)
            urgent = QueuedRequest(Timing(3.0, 3.0), due_s=9.0, key="any")
            with pytest.raises(NodeError, match="would be late"):
                await made.admission.submit(Shouting(), "urgent", urgent, "b")
            (kept,) = await asked(made, "b")
            with pytest.raises(NodeError, match="the queue is full"):
                await made.ask("b")
            rows += ask_rows(made, group, 1, waiting)
            await asyncio.sleep(0)
            assert not any(task.done() for task in (*rows, kept))
            group.close()
            made.gate.set()
            await asyncio.gather(first, kept, *rows)

    asyncio.run(run())


def test_a_request_that_ended_keeps_no_place() -> None:
    async def run() -> None:
        async with busy(2) as (made, first):
            group = RowGroup(4, 2)
            (row,) = ask_rows(made, group, 1, QueuedRequest(Timing(1.0, 1.0), due_s=50.0, key="any"))
            await asyncio.sleep(0)
            assert not made.admission.has_room("b")
            row.cancel()
            with pytest.raises(asyncio.CancelledError):
                await row
            group.close()
            others = await asked(made, "b", "b")
            made.gate.set()
            await asyncio.gather(first, *others)

    asyncio.run(run())


def test_planned_rows_count_as_work_of_their_client() -> None:
    """The router asks for the wait of a request before it joins: its planned rows then had no client, and
    another client's requests were refused for them."""

    async def run() -> None:
        async with busy(20) as (made, first):
            group, short = RowGroup(4, 4), QueuedRequest(Timing(1.0, 1.0), due_s=11.0, key="any")
            made.admission.wait_s(short, group)
            rows = ask_rows(made, group, 1, short, "a")
            await asyncio.sleep(0)
            long = QueuedRequest(Timing(3.2, 3.2), due_s=10.2, key="any")
            other = asyncio.create_task(made.admission.submit(Shouting(), "long", long, "b"))
            (end,) = await asyncio.gather(*rows, return_exceptions=True)
            assert isinstance(end, NodeError)
            assert not other.done()
            group.close()
            made.gate.set()
            assert (await other).result == "LONG"
            await first

    asyncio.run(run())


def test_the_last_row_of_a_request_needs_one_place() -> None:
    """It needed a place for each row that had been asked at once, though all others were answered."""

    async def run() -> None:
        async with busy(2) as (made, first):
            others = await asked(made, "b")
            group = RowGroup(2, 2)
            assert not made.admission.has_room("b", group)
            group.finish_row()
            assert made.admission.has_room("b", group)
            (row,) = ask_rows(made, group, 1, QueuedRequest(Timing(1.0, 1.0), key="any"))
            made.gate.set()
            await asyncio.gather(first, row, *others)

    asyncio.run(run())


def test_the_rows_of_a_displaced_request_take_no_time_from_the_one_in_their_place() -> None:
    """Those that had not joined the queue yet were still planned before it, and it was refused as late."""

    async def run() -> None:
        async with busy(3) as (made, first):
            group = RowGroup(9, 3)
            rows = ask_rows(made, group, 2, QueuedRequest(Timing(1.0, 1.0), key="any"), "a")
            await asyncio.sleep(0)
            new = QueuedRequest(Timing(1.0, 1.0), due_s=6.0, key="any", fair_s=0.0)
            other = asyncio.create_task(made.admission.submit(Shouting(), "new", new, "b"))
            ends = await asyncio.gather(*rows, return_exceptions=True)
            assert all(isinstance(end, NodeError) for end in ends)
            assert not made.admission.has_room("b", RowGroup(3, 3))
            assert made.admission.has_room("b", RowGroup(2, 2))
            made.gate.set()
            assert (await other).result == "NEW"
            await first

    asyncio.run(run())


def test_places_of_rows_that_run_are_kept_for_the_next_rows() -> None:
    """Other requests took the places of running rows, and the next rows then made the queue too long."""

    class Held(Shouting):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.gate = threading.Event(), threading.Event()

        def work(self, ones: Sequence[str], is_beside: bool) -> list[str]:
            self.begun.set()
            assert self.gate.wait(60)
            return super().work(ones, is_beside)

    async def run() -> None:
        async with busy(2) as (made, first):
            worker, group, waiting = Held(), RowGroup(4, 2), QueuedRequest(Timing(1.0, 1.0), key="any")
            rows = [
                asyncio.create_task(made.admission.submit(worker, row, waiting, "b", group=group))
                for row in ("row 0", "row 1")
            ]
            await asyncio.sleep(0)
            made.gate.set()
            assert await asyncio.to_thread(worker.begun.wait, 60)
            assert not made.admission.has_room("c")
            worker.gate.set()
            await asyncio.gather(first, *rows)

    asyncio.run(run())
