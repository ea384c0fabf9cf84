"""Put texts together in batches, each of which runs the layers of one plan once, over all its rows."""

from collections.abc import Hashable, Sequence

MOST_ROWS = 256
"""Of one batch: with more, texts a second rise no further, and intermediate tensors take more memory."""


def batches(
    lengths: Sequence[int], plans: Sequence[Hashable], most_rows: int = MOST_ROWS
) -> tuple[tuple[int, ...], ...]:
    """The numbers of the texts of each batch: of one plan, in their order, of at most `most_rows` tokens.

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
