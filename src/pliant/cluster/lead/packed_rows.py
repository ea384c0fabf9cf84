"""The rows of several texts that run together, one after another in one input. Pure."""

from collections.abc import Sequence

_PARTS, _LEAST = 16, 2


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
