"""Rows of cells as aligned columns of text, and as HTML."""

from collections.abc import Iterator, Sequence
from html import escape


def table_lines(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Yield one indented line per row, the first with column names; column `left` is left-aligned.

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


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """Return a `<table>`; the first row holds the column names.

    >>> table_html((("n",), ("<1",)))
    '<table><tr><th>n</th></tr><tr><td>&lt;1</td></tr></table>'
    """
    names, *rest = rows
    lines = (_cells("th", names), *(_cells("td", row) for row in rest))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cells(tag: str, row: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
