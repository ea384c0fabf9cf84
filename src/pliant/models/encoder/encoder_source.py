"""An opened encoder: its layers, its weights by name, and its input and output stages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final, runtime_checkable

import numpy as np

from pliant.arrays import Float32, Int, Integer, UInt8
from pliant.errors import InputError, ModelError
from pliant.ir.graph import Graph
from pliant.ir.port import Port
from pliant.models.encoder.bert import Bert
from pliant.models.encoder.encoder_architecture import AnswerKind, EncoderArchitecture, Feeds, PreparedInput
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.models.encoder.mobilebert import MobileBert
from pliant.models.encoder.part_builder import EncoderPart
from pliant.models.tokenizer import InputLimits, Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class MatrixCodes:
    """A weight matrix in a store's codes of `bits`: at k of them codebooks[k][codes >> bits - k].

    Outlier i is exactly `values[i]`, in row `rows[i]` and column `columns[i]`.
    """

    bits: int
    codes: UInt8[np.ndarray, "out in"]
    codebooks: Mapping[int, Float32[np.ndarray, " levels"]]
    rows: Int[np.ndarray, " outliers"]
    columns: Int[np.ndarray, " outliers"]
    values: Float32[np.ndarray, " outliers"]


@runtime_checkable
class CodedMatrices(Protocol):
    """Weights that a store keeps as codes; safe for several threads."""

    def codes(self, name: str, /) -> MatrixCodes:
        """The matrix of canonical `name`. Raises StoreError if it cannot be read."""
        ...


@runtime_checkable
class EncoderWeights(Protocol):
    """Tensors by canonical name, read on request; safe for several threads."""

    @property
    def identity(self) -> str:
        """A hash of the content, in hexadecimal digits."""
        ...

    def view(self, name: str, /) -> np.ndarray:
        """A tensor in its stored floating-point type, perhaps memory-mapped; do not modify it."""
        ...

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        """Rows of a table, without reading all of it where that can be avoided."""
        ...

    def release(self) -> None:
        """Free cached and mapped data of earlier calls; they are read again when needed."""
        ...


@runtime_checkable
class EncoderSource(Protocol):
    """The methods of an encoder that a split needs; see `Encoder`."""

    @property
    def spec(self) -> EncoderSpec: ...

    @property
    def identity(self) -> str: ...

    @property
    def whole(self) -> "EncoderSource": ...

    def tensor(self, name: str, /) -> Float32[np.ndarray, "..."]: ...

    def codes(self, name: str, /) -> MatrixCodes: ...

    def input(self, rows: int, /) -> Graph: ...

    def head(self, rows: int, /) -> Graph: ...

    def submodel(self, n_layers: int, n_heads: int, /) -> "EncoderSource": ...

    def release(self) -> None: ...


@final
@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """A transformer encoder: layers, weights by name, input and output stages.

    `tokenizer` is the directory of its tokenizer.json, if any. A submodel is an encoder with fewer layers and
    heads, with the weights of a `larger` one.
    """

    family: EncoderArchitecture
    weights: EncoderWeights
    tokenizer: Path | None = None
    larger: "Encoder | None" = None

    @property
    def spec(self) -> EncoderSpec:
        """The layers as data."""
        return self.family.spec

    @property
    def identity(self) -> str:
        """A hash of the content, equal on every device with the same model, plus the size of a submodel."""
        if self.larger is None:
            return self.weights.identity
        return submodel_identity(self.weights.identity, self.spec.n_layers, self.spec.n_heads)

    @property
    def whole(self) -> "Encoder":
        """The full model: the model of which this is a submodel, or this one."""
        return self if self.larger is None else self.larger.whole

    def submodel(self, n_layers: int, n_heads: int, /) -> "Encoder":
        """A submodel of `n_layers` layers (`picked_layers`), with the first heads and a proportional part of
        the feed forwards (STI 3).

        Raises ModelError for sizes that the model does not have, and for models that do not read text.
        """
        if not isinstance(self.family, Bert):
            raise ModelError(f"a {self.spec.family} has no submodels: text models of the BERT family have.")
        family = replace(self.family, spec=self.spec.submodel(n_layers, n_heads))
        return replace(self, family=family, larger=self)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """A classifier's names, in the order of its logits."""
        return self.family.labels

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        """The answers that `head` supports, the default first."""
        return self.family.answers

    def tensor(self, name: str, /) -> Float32[np.ndarray, "..."]:
        """The weight of canonical `name` in float32, perhaps memory-mapped; do not modify it.

        Raises ModelError (StoreError from a store) naming file and tensor if it cannot be read.
        """
        values: np.ndarray = self.weights.view(name).astype(np.float32, copy=False)
        return values

    def codes(self, name: str, /) -> MatrixCodes:
        """The matrix of canonical `name` as codes of a store, perhaps shared; do not modify it.

        Raises ModelError for a model that is not from a store, and StoreError naming what cannot be read.
        """
        if not isinstance(self.weights, CodedMatrices):
            raise ModelError(
                f"this {self.spec.family} has no coded weights: pack it (pliant pack MODEL -o STORE), and "
                "give the store to every device."
            )
        return self.weights.codes(name)

    def graph(self, part: EncoderPart, layer: int | None = None) -> Graph:
        """`part` with the weights of `layer`; stored half floats are widened only for the pieces that it
        reads.
        """
        return part.graph(self.weights.view, layer)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The required feeds by name; text models also accept `types`."""
        return self.family.inputs

    def rows(self, feeds: Feeds) -> int:
        """The number of rows of an input in the encoder. Raises InputError as `prepare` does."""
        return self.family.rows(feeds)

    def prepare(self, feeds: Feeds) -> PreparedInput:
        """Check an input (`ids` and `types`, `pixels` or `mel`), and look its tokens up.

        Raises InputError naming what does not fit the model.
        """
        return self.family.prepare(feeds, self.weights.rows)

    def release(self) -> None:
        """Free mapped and decoded data of earlier calls; they are read again when needed."""
        self.weights.release()

    @property
    def limits(self) -> InputLimits | None:
        """The input limits of a text model; None for another model."""
        match self.family:
            case Bert(model):
                return model
            case MobileBert() as family:
                return family
            case _:
                return None

    @property
    def reads_text(self) -> bool:
        """Whether it is a text model with a tokenizer; Whisper's, which is its decoder's, does not count."""
        return self.tokenizer is not None and self.limits is not None

    def open_tokenizer(self) -> Tokenizer:
        """The tokenizer, which turns text into `ids` and `types`. Raises InputError if the model reads no
        text.
        """
        limits = self.limits
        if self.tokenizer is None or limits is None:
            raise InputError(f"this {self.spec.family} has no tokenizer; feed it arrays by name.")
        return open_tokenizer(self.tokenizer, limits)

    def read(self, text: str, pair: str | None = None) -> Feeds:
        """The feeds of a text or a pair. Raises InputError if the model reads no text, or cannot read this
        text.
        """
        encoded = self.open_tokenizer().encode(text, pair)
        return {"ids": encoded.ids, "types": encoded.types}

    def sample(self, rows: int, seed: int = 0) -> Feeds:
        """Random feeds of `rows` rows, for timing. Raises InputError for a number of rows that is not
        supported.
        """
        return self.family.sample(rows, seed)

    def input(self, rows: int, /) -> Graph:
        """The input graph, which the primary runs first: prepared feeds to `x` float32 [rows, hidden].

        Raises InputError for a number of rows that is not supported.
        """
        return self.graph(self.family.input(rows))

    def head(self, rows: int, /, answer: AnswerKind | None = None) -> Graph:
        """The head graph, which the primary runs last: `x` float32 [rows, hidden] to `answer` float32, see
        `AnswerKind`.

        Raises InputError for an unsupported answer.
        """
        return self.graph(self.family.head(rows, answer or self.answers[0]))


def submodel_identity(model: str, n_layers: int, n_heads: int) -> str:
    """The identity of a submodel of `model` in a cluster."""
    return f"{model}/{n_layers}x{n_heads}"


def parse_identity(identity: str) -> tuple[str, tuple[int, int] | None]:
    """The full model's identity, and the layers and heads of a submodel, if it is one. Raises ModelError for
    another string.
    """
    model, _, size = identity.partition("/")
    if not size:
        return model, None
    n_layers, _, n_heads = size.partition("x")
    if not (n_layers.isdecimal() and n_heads.isdecimal() and len(size) < 12):
        raise ModelError(f"{identity[:80]!r} names no model, nor layers and heads of one.")
    return model, (int(n_layers), int(n_heads))
