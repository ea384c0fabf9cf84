"""The reply of every session and endpoint: the answer, its endpoint, its time, its accuracy."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any, Generic, TypeVar

import numpy as np

from pliant.errors import InputError
from pliant.ir.times.timing import is_in_time

D = TypeVar("D", covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Reply(Generic[D]):
    """An answer to one input of `length` items: tokens, words, or the product of open dimensions.

    It prints as one line, and shows as a table in a notebook.

    `outputs` are the arrays of the session's outputs, by name; for a text, their first dimension is 1. A
    sequence is a list of arrays, an absent optional value is None. `label` and its probability `score` are
    None if the model has no labels; `scores` are in label order (`label_scores`). `seconds` run from the
    input to the answer, including `waited_s` during which other threads used the session, and `loaded_s` of
    preparation that later answers need not repeat: to compile, to load weights. `target_s` is the requested
    latency. `accuracy` is the expected fraction of right answers, None if it was not measured.
    `whole_s` is the time that the endpoint's best answer would have taken at the same pace. `cut` says why an
    elastic model may leave out layers or slices: see `plan.submodel.submodel.CutReason`. `energy_j` is the
    energy above idle, in joules, of the device that received the request (of its radio, if another node
    answered) or of all devices of its cluster, None if it is not metered. `details` holds data specific to
    the kind of session.
    """

    outputs: Mapping[str, Any]
    endpoint: str
    seconds: float
    details: D
    length: int = 0
    waited_s: float = 0.0
    target_s: float | None = None
    label: str | None = None
    score: float | None = None
    scores: tuple[float, ...] | None = None
    accuracy: float | None = None
    whole_s: float | None = None
    cut: str | None = None
    energy_j: float | None = None
    loaded_s: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the answer came within the target; None without a target."""
        return is_in_time(self.seconds, self.target_s)

    @property
    def output(self) -> Any:
        """The array of a model with one output. Raises InputError for a model with several outputs."""
        if len(self.outputs) != 1:
            raise InputError(
                f"the model has {len(self.outputs)} outputs, {list(self.outputs)}: see `outputs`."
            )
        return next(iter(self.outputs.values()))

    @property
    def logits(self) -> np.ndarray[Any, Any] | None:
        """A classifier's float32 [labels], for one text; None for other models."""
        return self._row("logits")

    @property
    def vector(self) -> np.ndarray[Any, Any] | None:
        """The float32 [features] of a model that returns a vector, for one text; None for other models."""
        return self._row("vector")

    def __str__(self) -> str:
        from pliant.ir.text.reply_text import reply_line  # which imports this module

        return reply_line(self)

    def __repr__(self) -> str:
        return f"<Reply: {self}>"

    def _repr_html_(self) -> str:
        from pliant.ir.text.reply_text import reply_html

        return reply_html(self)

    def _row(self, name: str) -> np.ndarray[Any, Any] | None:
        array = self.outputs.get(name)
        return array[0] if isinstance(array, np.ndarray) and array.ndim > 1 else None


def label_scores(logits: np.ndarray[Any, Any]) -> tuple[float, ...]:
    """Return the scores, in float64, of logits [labels], as transformers' text classification does.

    They are the softmax, whose sum is 1. The score of a single label, such as a reranker's, is its sigmoid.
    """
    values = logits.tolist()  # for few numbers, Python takes a tenth of numpy's time
    if len(values) == 1:
        share = exp(-abs(values[0]))  # at most 1, so that no logit overflows
        return ((1.0 if values[0] >= 0.0 else share) / (1.0 + share),)
    greatest = max(values)
    shares = [exp(value - greatest) for value in values]
    total = sum(shares)
    return tuple(share / total for share in shares)
