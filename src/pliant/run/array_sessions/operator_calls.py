"""The kernel calls of a compiled program, summed by operator, for the tables of plans."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pliant.compiler.executable.encode_image import CallEntry
from pliant.ir.text.table_text import table_lines
from pliant.quantities import format_bytes

_COLUMNS = ("kernel calls", "operator", "GFLOP of products", "bytes read and written")


@dataclass(frozen=True, slots=True)
class OperatorCalls:
    """Totals over all kernel calls of one operator: operations, bytes read and written. A fused call counts
    under its first operator.
    """

    op: str
    n_calls: int
    flops: int
    n_bytes: int


def operator_calls(rows: Sequence[CallEntry]) -> tuple[OperatorCalls, ...]:
    """The operators of a program, ordered by the bytes they read and write, largest first."""
    n_calls, flops, n_bytes = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        op = row.op or row.kernel
        n_calls[op] += 1
        flops[op] += row.flops
        n_bytes[op] += row.n_bytes
    found = (OperatorCalls(op, n, flops[op], n_bytes[op]) for op, n in n_calls.items())
    return tuple(sorted(found, key=lambda one: (-one.n_bytes, one.op)))


def operators_text(operators: Sequence[OperatorCalls]) -> list[str]:
    """The lines of a text table."""
    return list(table_lines((_COLUMNS, *_cells(operators)), left=1))


def operators_html(operators: Sequence[OperatorCalls]) -> str:
    """The same table for a notebook."""
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in _cells(operators))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _cells(operators: Sequence[OperatorCalls]) -> Iterator[Sequence[str]]:
    for one in operators:
        gflop = f"{one.flops / 1e9:.3g}" if one.flops else ""
        yield str(one.n_calls), one.op, gflop, format_bytes(one.n_bytes)
