"""Batches of a cluster's session: which inputs run together, and their replies."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pliant.errors import BudgetError
from pliant.ir.endpoint import Request
from pliant.run.batches.text_batches import group_texts

MOST_TOGETHER = 64
_PARTS, _LEAST = 16, 2
T = TypeVar("T")
R = TypeVar("R")


def answer_in_batches(
    lengths: Sequence[int], most_rows: int, asked: Sequence[T], answer: Callable[[list[T]], Sequence[R]]
) -> list[R]:
    """Return the results for all that are `asked`, of `lengths` rows, in order; `answer` takes one batch.

    A batch has at most `most_rows` rows; with 0 each is answered alone, and so are those of a batch for which
    there is no memory. Raises the errors of `answer`.
    """
    found: dict[int, R] = {}
    for numbers in group_texts(lengths, [None] * len(lengths), most_rows):
        found |= zip(numbers, _answer_batch([asked[i] for i in numbers], answer), strict=True)
    return [found[i] for i in range(len(found))]


def _answer_batch(asked: list[T], answer: Callable[[list[T]], Sequence[R]]) -> Sequence[R]:
    try:
        return answer(asked)
    except BudgetError:
        if len(asked) == 1:
            raise
        return [answer([one])[0] for one in asked]


def joint_request(requests: Sequence[Request], most_rows: int) -> Request:
    """Return one request for a batch: all its rows, the earliest deadline, and the highest floor."""
    deadlines_s = [one.deadline_s for one in requests if one.deadline_s is not None]
    floors = [one.accuracy_floor for one in requests if one.accuracy_floor is not None]
    return replace(
        requests[0],
        length=packed_rows([one.length for one in requests], most_rows),
        deadline_s=min(deadlines_s, default=None),
        accuracy_floor=max(floors, default=None),
    )


def packed_rows(lengths: Sequence[int], most: int) -> int:
    """Return the rows of a plan for inputs of `lengths` rows: for several, their sum rounded up, to `most`.

    A plan is for one number of rows, and preparing one takes about as long as a run. The sum of several texts
    is rounded up to a sixteenth of the next power of two, or to a multiple of 2, so that batches share few
    plans. The rows at the end that belong to no text are computed in vain: 3 to 6 % of them on average.
    """
    n = sum(lengths)
    if len(lengths) < 2:
        return n
    step = max((1 << (n - 1).bit_length()) // _PARTS, _LEAST)
    return min(-(-n // step) * step, max(most, n))
