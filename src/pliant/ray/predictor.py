"""`pliant.ray.Predictor`: a model that a Ray Data actor opens once and runs on batches."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import Source
from pliant.errors import InputError
from pliant.ir.reply import Reply
from pliant.ray.assigned_threads import assigned_threads
from pliant.run.array_sessions.array_session import ArraySession
from pliant.run.session.text_session import TextSession

Columns = Mapping[str, "np.ndarray[Any, Any]"]
_TEXT, _PAIR = "text", "pair"


@final
class Predictor:
    """A callable class for `Dataset.map_batches`: returns the input columns and the model's outputs.

    `source` and `options` are those of `pliant.open`; a text encoder keeps 100 MB of weights unless `preload`
    or `memory` bounds it. `threads` defaults to the CPUs that Ray assigned to the actor. A path must lead to
    the model on every machine of the Ray cluster.

    A text model reads the column `text`, and the column `pair` if there is one. Any other model reads one
    column for each input; each row is fed with a first dimension of 1. `columns` maps inputs to other column
    names: `{"text": "review"}`. The rows of a batch run together. Each output becomes a column of its name,
    [rows, ...]: `logits` or `vector` for a text model, and also `label` and `score` for a classifier.
    `prefix` is prepended to these names. With `truncate`, texts that are too long are cut at the end.

    Raises InputError if the batch lacks a column (the message lists those it has), if an output would have
    the name of an existing column, and if the model cannot read a row. The whole batch then fails.
    """

    def __init__(
        self,
        source: Source,
        *,
        columns: Mapping[str, str] | None = None,
        prefix: str = "",
        truncate: bool = False,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self._session = open_endpoint(source, threads=assigned_threads(threads), **options)
        self._columns, self._prefix, self._truncates = dict(columns or {}), prefix, truncate
        inputs = self._inputs
        if unknown := sorted(self._columns.keys() - set(inputs)):
            raise InputError(
                f"columns names {', '.join(unknown)}, which {self._session.name} does not read: its inputs "
                f"are {', '.join(inputs)}."
            )

    def __call__(self, batch: Columns) -> dict[str, "np.ndarray[Any, Any]"]:
        """Return the columns of `batch` and the output columns, rows in the same order."""
        answers = {self._prefix + name: column for name, column in self._answers(batch).items()}
        if taken := sorted(answers.keys() & batch.keys()):
            raise InputError(
                f"the answers would replace the columns {', '.join(taken)}: give a prefix, such as "
                "prefix='predicted_'."
            )
        return {**batch, **answers}

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The input names that `columns` may map."""
        if isinstance(self._session, TextSession):
            return (_TEXT, _PAIR)
        return tuple(port.name for port in self._session.inputs)

    def _answers(self, batch: Columns) -> dict[str, "np.ndarray[Any, Any]"]:
        if isinstance(self._session, TextSession):
            return self._text_answers(self._session, batch)
        if isinstance(self._session, ArraySession):
            return self._array_answers(self._session, batch)
        raise InputError(f"{self._session.name} answers no batches: open a text model or an ONNX model.")

    def _text_answers(self, session: TextSession[Any], batch: Columns) -> dict[str, "np.ndarray[Any, Any]"]:
        texts = self._column(batch, _TEXT)
        has_pair = _PAIR in self._columns or _PAIR in batch
        pairs = list(self._column(batch, _PAIR)) if has_pair else [None] * len(texts)
        asked = [
            self._text(session, row, text, pair)
            for row, (text, pair) in enumerate(zip(texts, pairs, strict=True))
        ]
        return _text_columns(session(asked)) if asked else {}

    def _text(self, session: TextSession[Any], row: int, text: Any, pair: Any) -> str | tuple[str, str]:
        """Return the session's input for a row. Raises InputError if a value is not a string."""
        for name, value in ((_TEXT, text), (_PAIR, "" if pair is None else pair)):
            if not isinstance(value, str):
                column = self._columns.get(name, name)
                raise InputError(
                    f"row {row} of the batch has {value!r:.40} in {column!r}, which is not text: fill or "
                    "drop such rows."
                )
        if self._truncates:
            text, pair = session.truncate(text, pair)
        return text if pair is None else (text, pair)

    def _array_answers(self, session: ArraySession, batch: Columns) -> dict[str, "np.ndarray[Any, Any]"]:
        columns = {port.name: self._column(batch, port.name) for port in session.inputs}
        n = len(next(iter(columns.values())))
        rows = [{name: np.asarray(column[i])[None] for name, column in columns.items()} for i in range(n)]
        answers = session.run_many(rows)
        if not answers:
            return {}
        return {port.name: _joined([one[port.name] for one in answers]) for port in session.outputs}

    def _column(self, batch: Columns, name: str) -> "np.ndarray[Any, Any]":
        column = self._columns.get(name, name)
        if column not in batch:
            raise InputError(
                f"the batch has no column {column!r} for {name!r} of {self._session.name}: it has "
                f"{', '.join(batch)}. Name the one to read: columns={{{name!r}: ...}}."
            )
        return batch[column]


def _text_columns(replies: Sequence[Reply[Any]]) -> dict[str, "np.ndarray[Any, Any]"]:
    """`logits`, `label` and `score` of classifiers, `vector` of others."""
    if replies[0].label is None:
        return {"vector": np.stack([reply.outputs["vector"][0] for reply in replies])}
    return {
        "logits": np.stack([reply.outputs["logits"][0] for reply in replies]),
        "label": np.array([reply.label for reply in replies], object),
        "score": np.array([reply.score for reply in replies], np.float64),
    }


def _joined(rows: "Sequence[np.ndarray[Any, Any]]") -> "np.ndarray[Any, Any]":
    """Combine the rows of one column: an array if all shapes agree, otherwise an array of arrays."""
    parts = [row[0] if row.ndim and len(row) == 1 else row for row in rows]
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    column = np.empty(len(parts), object)
    column[:] = parts
    return column
