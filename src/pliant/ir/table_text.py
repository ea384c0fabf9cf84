"""Rows of cells as aligned columns of text, for people."""

from collections.abc import Iterator, Sequence


def table_lines(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """One indented line a row, the first of which names the columns; column `left` is aligned to the left.

    >>> list(table_lines((("n", "name"), ("10", "a")), left=1))
    ['   n  name', '  10  a']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i == left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()
