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
from pliant.models.encoder.bert import Text
from pliant.models.encoder.encoder_draft import Part
from pliant.models.encoder.encoder_family import Answer, Family, Feeds, Prepared
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.models.encoder.mobilebert import MobileBert
from pliant.models.tokenizer import Limits, Tokenizer, open_tokenizer


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
    """Weights that a store keeps in codes; threads may share it."""

    def codes(self, name: str, /) -> MatrixCodes:
        """The matrix of canonical `name`. Raises StoreError where it cannot be read."""
        ...


@runtime_checkable
class EncoderWeights(Protocol):
    """Tensors by canonical name, read no earlier than they are asked for; threads may share it."""

    @property
    def identity(self) -> str:
        """A hash of the content, in hexadecimal digits."""
        ...

    def view(self, name: str, /) -> np.ndarray:
        """A tensor in the floating-point type it is stored in, perhaps memory-mapped: do not write."""
        ...

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        """Rows of a table, without reading all of it where that can be avoided."""
        ...

    def release(self) -> None:
        """Let go of what was kept or mapped to answer the last calls; it is read again at need."""
        ...


@runtime_checkable
class EncoderSource(Protocol):
    """What a split needs of an encoder whose weights can be read one by one; see `Encoder`."""

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
    """A transformer encoder, on any device that holds the model: layers, weights by name, and its two ends.

    `tokenizer` is the directory of its tokenizer.json, where it has one. A submodel is an encoder with fewer
    layers and heads on the weights of a `larger` one.
    """

    family: Family
    weights: EncoderWeights
    tokenizer: Path | None = None
    larger: "Encoder | None" = None

    @property
    def spec(self) -> EncoderSpec:
        """The layers as data."""
        return self.family.spec

    @property
    def identity(self) -> str:
        """A hash of the content, equal on every device that holds the same model; and a submodel's size."""
        if self.larger is None:
            return self.weights.identity
        return submodel_identity(self.weights.identity, self.spec.n_layers, self.spec.n_heads)

    @property
    def whole(self) -> "Encoder":
        """The model of which this is a submodel, or this."""
        return self if self.larger is None else self.larger.whole

    def submodel(self, n_layers: int, n_heads: int, /) -> "Encoder":
        """So many layers (`picked_layers`), with the first heads and as much of their feed forwards (STI 3).

        Raises ModelError for sizes that the model has not, and for others than text models.
        """
        if not isinstance(self.family, Text):
            raise ModelError(f"a {self.spec.family} has no submodels: text models of the BERT family have.")
        family = replace(self.family, spec=self.spec.submodel(n_layers, n_heads))
        return replace(self, family=family, larger=self)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """A classifier's names, in the order of its logits."""
        return self.family.labels

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What `head` can give, the default first."""
        return self.family.answers

    def tensor(self, name: str, /) -> Float32[np.ndarray, "..."]:
        """The weight of canonical `name` in float32, perhaps memory-mapped: do not write.

        Raises ModelError (StoreError from a store) naming file and tensor where it cannot be read.
        """
        values: np.ndarray = self.weights.view(name).astype(np.float32, copy=False)
        return values

    def codes(self, name: str, /) -> MatrixCodes:
        """The matrix of canonical `name` as a store keeps it, perhaps shared: do not write.

        Raises ModelError for a model that is no store, and StoreError naming what cannot be read.
        """
        if not isinstance(self.weights, CodedMatrices):
            raise ModelError(
                f"this {self.spec.family} has no coded weights: pack it (pliant pack MODEL -o STORE), and "
                "give the store to every device."
            )
        return self.weights.codes(name)

    def graph(self, part: Part, layer: int | None = None) -> Graph:
        """`part` on the weights of `layer`; of stored half floats only the pieces it reads are widened."""
        return part.graph(self.weights.view, layer)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What has to be fed, by name; text models take `types` as well."""
        return self.family.inputs

    def rows(self, feeds: Feeds) -> int:
        """How many rows an input has in the encoder. Raises InputError as `prepare` does."""
        return self.family.rows(feeds)

    def prepare(self, feeds: Feeds) -> Prepared:
        """Check an input (`ids` and `types`, `pixels` or `mel`), and look its tokens up.

        Raises InputError naming what does not fit the model.
        """
        return self.family.prepare(feeds, self.weights.rows)

    def release(self) -> None:
        """Let go of what was mapped or decoded to answer the last calls; it is read again at need."""
        self.weights.release()

    @property
    def limits(self) -> Limits | None:
        """What a text model can read; None for another model."""
        match self.family:
            case Text(model):
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
        """What turns text into `ids` and `types`. Raises InputError where the model reads no text."""
        limits = self.limits
        if self.tokenizer is None or limits is None:
            raise InputError(f"this {self.spec.family} has no tokenizer; feed it arrays by name.")
        return open_tokenizer(self.tokenizer, limits)

    def read(self, text: str, pair: str | None = None) -> Feeds:
        """The feeds of a text, or of a pair. Raises InputError where the model reads no text, or not this."""
        encoded = self.open_tokenizer().encode(text, pair)
        return {"ids": encoded.ids, "types": encoded.types}

    def sample(self, rows: int, seed: int = 0) -> Feeds:
        """Random feeds that make `rows` rows: what is timed. Raises InputError for rows it cannot have."""
        return self.family.sample(rows, seed)

    def input(self, rows: int, /) -> Graph:
        """What the primary runs first: prepared feeds to `x` float32 [rows, hidden].

        Raises InputError for rows the model cannot have.
        """
        return self.graph(self.family.input(rows))

    def head(self, rows: int, /, answer: Answer | None = None) -> Graph:
        """What the primary runs last: `x` float32 [rows, hidden] to `answer` float32, see `Answer`.

        Raises InputError for an answer the model cannot give.
        """
        return self.graph(self.family.head(rows, answer or self.answers[0]))


def submodel_identity(model: str, n_layers: int, n_heads: int) -> str:
    """What members of a cluster call a submodel of `model`."""
    return f"{model}/{n_layers}x{n_heads}"


def parse_identity(identity: str) -> tuple[str, tuple[int, int] | None]:
    """The whole model's identity, and the layers and heads of a submodel. Raises ModelError for neither."""
    model, _, size = identity.partition("/")
    if not size:
        return model, None
    n_layers, _, n_heads = size.partition("x")
    if not (n_layers.isdecimal() and n_heads.isdecimal() and len(size) < 12):
        raise ModelError(f"{identity[:80]!r} names no model, nor layers and heads of one.")
    return model, (int(n_layers), int(n_heads))
