"""Read labelled sentences and pairs from TSV files."""

import errno
import gzip
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pliant.errors import InputError

# Column names in the wild: GLUE (SST-2, RTE, QNLI, QQP), SNLI/MNLI, and the Microsoft paraphrase corpus.
_FIRST = ("sentence1", "question1", "question", "premise", "#1 String", "sentence", "text")
_SECOND = ("sentence2", "question2", "sentence", "hypothesis", "#2 String")
_LABEL = ("label", "Quality", "is_duplicate", "gold_label")


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled input; `label` indexes the label names it was read with, `where` names file and line."""

    text: str
    pair: str | None
    label: int
    where: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One row of a TSV; `label` is as it is written there, `where` names file and line."""

    text: str
    pair: str | None
    label: str
    where: str


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a TSV file."""

    n_columns: int
    text: int
    pair: int | None
    label: int


def read_examples(path: Path, labels: Sequence[str]) -> tuple[Example, ...]:
    """The rows of a TSV (gzipped when it ends in .gz) with a header line; quotes are literal text.

    Columns are found by their GLUE or MRPC names. A label is one of `labels` (case-insensitive), or its
    number. Raises InputError naming file and line for a short or long row, a label that is none of `labels`,
    an empty text, a blank line between others, bad UTF-8, an unknown header, or no rows at all.
    """
    return index_labels(path, read_rows(path), labels)


def read_rows(path: Path) -> tuple[LabelledRow, ...]:
    """The rows of a TSV as `read_examples` reads them, before their labels are compared with a model's.

    Raises InputError as `read_examples` does.
    """
    rows = tuple(_rows(path))
    if not rows:
        raise InputError(f"{path_label(path)} has a header but no rows; give at least one example.")
    return rows


def index_labels(path: Path, rows: Iterable[LabelledRow], labels: Sequence[str]) -> tuple[Example, ...]:
    """The examples of the rows that were read from `path`. Raises InputError as `read_examples` does."""
    if not labels:
        raise InputError(
            f"{path_label(path)} needs a classifier's labels, but the model has none; evaluate a classifier."
        )
    return tuple(
        Example(row.text, row.pair, _label_index(row.where, row.label, labels), row.where) for row in rows
    )


def label_names(path: Path) -> tuple[str, ...]:
    """The distinct labels of a TSV in the order for a new classifier: numbers by value, names alphabetically.

    Raises InputError as `read_examples` does, and for fewer than two distinct labels.
    """
    found = {row.label for row in _rows(path)}
    if len(found) < 2:
        raise InputError(
            f"{path_label(path)} holds {len(found)} distinct labels; a classifier needs at least 2."
        )
    if all(re.fullmatch(r"\d+", label) for label in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def _rows(path: Path) -> Iterator[LabelledRow]:
    lines, name = numbered_lines(path), path_label(path)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{name} is empty; give a header line and at least one example.")
    layout = _layout(path, first[1].split("\t"))
    for at, line in lines:
        cells = line.split("\t")
        if len(cells) != layout.n_columns:
            raise InputError(
                f"{name}, line {at}: {len(cells)} columns, but the header names {layout.n_columns}; "
                "columns are separated by single tabs."
            )
        text, pair = cells[layout.text], None if layout.pair is None else cells[layout.pair]
        if not text.strip() or (pair is not None and not pair.strip()):
            raise InputError(f"{name}, line {at}: the text is empty.")
        yield LabelledRow(text, pair, cells[layout.label].strip(), f"{name}, line {at}")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; only a line feed ends a line. Blank lines may end the file.

    A file whose name ends in .gz is decompressed; `-` is standard input. Raises InputError naming file and
    line for a blank line before others, which would shift answers against questions, and for bad UTF-8.
    """
    blank, name = None, path_label(path)
    try:
        with _open(path) as file:
            for at, raw in enumerate(file, 1):
                line = raw.decode("utf-8-sig" if at == 1 else "utf-8").rstrip("\r\n")
                if not line.strip():
                    blank = blank or at
                    continue
                if blank is not None:
                    raise InputError(f"{name}, line {blank}: the line is empty; remove it.")
                yield at, line
    except UnicodeDecodeError as e:
        raise InputError(
            f"{name}, line {at}: byte {e.start + 1} is not UTF-8; convert the file to UTF-8."
        ) from e
    except (OSError, EOFError) as e:
        raise InputError(f"{name} cannot be read: {getattr(e, 'strerror', None) or e}.") from e


def path_label(path: Path) -> str:
    """The name of a file in messages: `-` is standard input."""
    return "standard input" if path == Path("-") else str(path)


def standard_input() -> BinaryIO:
    """The stream for `-`. Raises OSError if the process has no standard input."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    return sys.stdin.buffer


def _open(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if path == Path("-"):
        return nullcontext(standard_input())  # which this function must not close
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _layout(path: Path, header: list[str]) -> _Columns:
    names = [name.strip() for name in header]
    label = next((names.index(n) for n in _LABEL if n in names), None)
    text = next((names.index(n) for n in _FIRST if n in names), None)
    if label is None or text is None:
        raise InputError(
            f"{path_label(path)}, line 1: no known columns in the header {names}; it needs a text column "
            f"({', '.join(_FIRST)}), a label column ({', '.join(_LABEL)}) and, for pairs, a second text "
            f"({', '.join(_SECOND)})."
        )
    pair = next((names.index(n) for n in _SECOND if n in names and names.index(n) != text), None)
    return _Columns(len(names), text, pair, label)


def _label_index(where: str, label: str, labels: Sequence[str]) -> int:
    folded = [name.casefold() for name in labels]
    if label.casefold() in folded:
        return folded.index(label.casefold())
    if re.fullmatch(r"[0-9]{1,9}", label) and int(label) < len(labels):
        return int(label)
    raise InputError(
        f"{where}: label {label!r} is none of the model's {len(labels)} labels "
        f"({', '.join(labels)}) and no number below {len(labels)}."
    )
