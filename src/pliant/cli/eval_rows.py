"""The values that `pliant eval` keeps of each answer, and the function that computes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.api.model import Model
from pliant.cli.shared.text_model import best_class, text_model
from pliant.ir.reply import Reply
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.system import peak_rss_bytes

EvalExample = tuple[str, str | None] | Mapping[str, np.ndarray]
"""A text with its pair or without, or the feeds of an example, with a first dimension of 1."""


@dataclass(frozen=True, slots=True)
class ElasticRow:
    """The part of an elastic model that ran: see `ElasticDetails`."""

    submodel: tuple[int, int]
    cut: str | None
    is_reduced: bool
    within_reach: bool
    resident_weight_bytes: int
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One answer: `answer` is its label or the number of its class, `seconds` its time."""

    answer: str | int | None
    seconds: float
    accuracy: float | None
    peak_rss_bytes: int
    elastic: ElasticRow | None = None


def make_asker(model: Model, session: Session[Any], is_text: bool) -> Callable[[EvalExample], EvalRow]:
    """Return a function that answers one example. Raises InputError for texts if the model reads none."""
    return _text_asker(model, session) if is_text else _array_asker(session)


def _text_asker(model: Model, session: Session[Any]) -> Callable[[EvalExample], EvalRow]:
    asked = text_model(model, session)

    def ask(item: EvalExample) -> EvalRow:
        assert isinstance(item, tuple)
        reply = asked.answer(*item)
        return _row(reply, reply.label)

    return ask


def _array_asker(session: Session[Any]) -> Callable[[EvalExample], EvalRow]:
    met: list[bool] = []

    def ask(item: EvalExample) -> EvalRow:
        assert isinstance(item, Mapping)
        request = session.request(item)
        if not met:
            session.answer(request)  # compiles, which is not part of the measured time
            met.append(True)
        reply = session.answer(request)
        return _row(reply, best_class(reply))

    return ask


def _row(reply: Reply[Any], answer: str | int | None) -> EvalRow:
    elastic = None
    if isinstance(reply.details, ElasticDetails):
        d = reply.details
        elastic = ElasticRow(
            d.submodel,
            reply.cut,
            d.bits != d.planned_bits,
            d.within_reach,
            d.resident_weight_bytes,
            d.arena_bytes,
        )
    return EvalRow(answer, reply.seconds, reply.accuracy, peak_rss_bytes(), elastic)


def examples_of(feeds: Mapping[str, np.ndarray], n: int) -> Sequence[EvalExample]:
    """Return the first `n` rows of the arrays, one example each."""
    return [{name: array[i : i + 1] for name, array in feeds.items()} for i in range(n)]
