"""The interface of an encoder family: its input and output stages, and the names of its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.models.encoder.encoder_spec import EncoderSpec, LinearSpec
from pliant.models.encoder.part_builder import EncoderPart, PartBuilder

AnswerKind = Literal["logits", "pooled", "hidden"]
"""logits [labels]; pooled: one vector [hidden]; hidden: the last hidden states [rows, hidden]."""

Feeds = Mapping[str, np.ndarray]
TableLookup = Callable[[str, Integer[np.ndarray, " n"]], Float32[np.ndarray, "n columns"]]
"""Rows of a table by its canonical name."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInput:
    """A checked input: its number of rows in the encoder, and the feeds of the input graph."""

    rows: int
    feeds: Feeds


@runtime_checkable
class EncoderArchitecture(Protocol):
    """An encoder without its weights."""

    @property
    def spec(self) -> EncoderSpec:
        """The layers."""
        ...

    @property
    def labels(self) -> tuple[str, ...] | None:
        """A classifier's names, in the order of its logits."""
        ...

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        """The answers that the head supports; the first is the default."""
        ...

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The required feeds by name; `rows` may accept more."""
        ...

    def end_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Canonical name and shape of every tensor of the input and the head, as Hugging Face stores it."""
        ...

    def saved_names(self, name: str, /) -> tuple[str, ...]:
        """The possible names of the canonical tensor `name` in a Hugging Face directory, the likeliest
        first.
        """
        ...

    def rows(self, feeds: Feeds, /) -> int:
        """The number of rows of the feeds in the encoder. Raises InputError naming what does not fit the
        model.
        """
        ...

    def prepare(self, feeds: Feeds, look_up: TableLookup, /) -> PreparedInput:
        """Check feeds and look their tokens up. Raises InputError as `rows` does."""
        ...

    def sample(self, rows: int, seed: int, /) -> Feeds:
        """Random feeds of `rows` rows. Raises InputError for a number of rows that the model does not
        support.
        """
        ...

    def input(self, rows: int, /) -> EncoderPart:
        """The prepared input to `x` float32 [rows, hidden]."""
        ...

    def head(self, rows: int, answer: AnswerKind, /) -> EncoderPart:
        """`x` float32 [rows, hidden] to `answer`. Raises InputError for an unsupported answer."""
        ...


def check_feeds(feeds: Feeds, names: tuple[str, ...], kind: str) -> dict[str, np.ndarray]:
    """The feeds in the order of `names`, those beyond the first optional; `kind` is "iu" or "f".

    Raises InputError for a feed that is missing, unknown, or of another type.
    """
    unknown = sorted(set(feeds) - set(names))
    if unknown or names[0] not in feeds:
        raise InputError(
            f"the model reads {' and '.join(names)}, but was fed {', '.join(feeds) or 'nothing'}."
        )
    found = {name: np.asarray(feeds[name]) for name in names if name in feeds}
    for name, array in found.items():
        if array.dtype.kind not in kind:
            what = "whole numbers" if "i" in kind else "floating-point numbers"
            raise InputError(f"{name} is {array.dtype}, but the model reads {what}.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{name} holds NaN or infinity.")
    return found


def check_answer(family: EncoderArchitecture, answer: AnswerKind) -> None:
    if answer not in family.answers:
        raise InputError(
            f"this {family.spec.family} gives no {answer}; it gives {' or '.join(family.answers)}."
        )


def add_classifier(d: PartBuilder, x: str, hidden: int, labels: tuple[str, ...]) -> EncoderPart:
    """The last part of the head: one row [1, hidden] to `answer` [labels]."""
    logits = d.linear(x, LinearSpec("head.classifier", hidden, len(labels)))
    return d.part(answer=d.reshape(logits, len(labels)))
