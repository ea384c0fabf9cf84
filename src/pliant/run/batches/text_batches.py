"""Group texts into batches; a batch runs the layers of one plan once, over all its rows."""

from collections.abc import Hashable, Sequence

MOST_ROWS = 256
"""Rows of one batch: more rows do not raise the throughput, and need more memory for intermediate tensors."""


def group_texts(
    lengths: Sequence[int], plans: Sequence[Hashable], most_rows: int = MOST_ROWS
) -> tuple[tuple[int, ...], ...]:
    """The indices of the texts of each batch: texts of one plan, in order, of at most `most_rows` tokens
    together.

    A longer text is a batch of its own.
    """
    found: list[list[int]] = []
    last: dict[Hashable, tuple[list[int], int]] = {}
    for i, (n, plan) in enumerate(zip(lengths, plans, strict=True)):
        numbers, rows = last.get(plan, ([], 0))
        if not numbers or rows + n > most_rows:
            numbers, rows = [], 0
            found.append(numbers)
        numbers.append(i)
        last[plan] = numbers, rows + n
    return tuple(map(tuple, found))
