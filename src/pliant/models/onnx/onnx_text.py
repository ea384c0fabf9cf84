"""Text input for an ONNX model: the tokenizer and the labels beside its file or in a compiled directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec
import numpy as np

from pliant.errors import ModelError
from pliant.ir.port import Port
from pliant.models.hf.config import TEXT_FAMILIES, label_names, read_json
from pliant.models.tokenizer import Tokenizer, open_tokenizer

TEXT = "text"
"""The folder of a compiled directory that holds tokenizer.json and config.json, which mark directories of
other models.
"""
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
"""The inputs of every text model that transformers exports; the last two may be missing."""
_INTEGERS = ("int64", "int32")
_CLASSIFIER = "ForSequenceClassification"
_AS_ROBERTA = frozenset((
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta-prelayernorm",
    "xlm-roberta-xl", "xmod",
))  # fmt: skip
"""Types of transformers' text encoders, besides TEXT_FAMILIES, that count positions as RoBERTa does: the
first token has the position after the padding token's id.
"""


class _Config(msgspec.Struct):
    """The keys of config.json for a tokenizer and a classifier's labels, with the defaults of
    transformers.
    """

    model_type: str
    vocab_size: int
    max_position_embeddings: int = 512
    pad_token_id: int | None = None
    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None


@final
@dataclass(frozen=True, slots=True)
class _Limits:
    """`Limits` of a tokenizer."""

    family: str
    vocab: int
    n_types: int
    max_tokens: int
    position_offset: int


@final
@dataclass(frozen=True, slots=True)
class OnnxText:
    """How an ONNX model reads text; `labels` are a classifier's, None for another model.

    `length` is the number of tokens of a model with a fixed input length: shorter texts are padded with
    `pad_id` and masked.
    """

    tokenizer: Tokenizer
    labels: tuple[str, ...] | None
    inputs: tuple[Port, ...]
    length: int | None
    pad_id: int

    @property
    def max_tokens(self) -> int:
        return self.tokenizer.spec.max_tokens

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special ones included, without padding. Raises InputError as `feeds` does."""
        return self.tokenizer.encode(text).n_tokens

    def feeds(self, text: str, pair: str | None = None) -> dict[str, np.ndarray]:
        """The model's inputs for a text or a pair: [1, tokens] each. Raises InputError as `encode` does."""
        encoded = self.tokenizer.encode(text, pair)
        n_padding = 0 if self.length is None else self.length - encoded.n_tokens
        rows = {
            IDS: np.pad(encoded.ids, (0, n_padding), constant_values=self.pad_id),
            MASK: np.pad(np.ones(encoded.n_tokens, np.int64), (0, n_padding)),
            TYPES: np.pad(encoded.types, (0, n_padding)),
        }
        return {port.name: rows[port.name].astype(port.dtype)[None] for port in self.inputs}


def open_onnx_text(file: Path, inputs: Sequence[Port]) -> OnnxText | None:
    """The text input of the model in `file`; None if it has other inputs, or no tokenizer.json.

    tokenizer.json is in `text_folder`. Raises ModelError naming what is wrong with it or with config.json.
    """
    ports = {port.name: port for port in inputs}
    if IDS not in ports or not ports.keys() <= {IDS, MASK, TYPES}:
        return None
    rows, fixed = dims if len(dims := ports[IDS].dims or ()) == 2 else (0, 0)
    if (isinstance(rows, int) and rows != 1) or any(port.dtype not in _INTEGERS for port in inputs):
        return None
    folder = text_folder(file)
    if folder is None:
        return None
    config: _Config = read_json(folder / "config.json", _Config)
    length = fixed if isinstance(fixed, int) else None
    if length is not None and MASK not in ports:
        raise ModelError(
            f"{file} takes texts of {length} tokens and no {MASK}, so shorter ones cannot be marked as such: "
            "feed arrays, or export it with a dynamic length."
        )
    is_classifier = any(name.endswith(_CLASSIFIER) for name in config.architectures or ())
    return OnnxText(
        tokenizer=open_tokenizer(folder, _limits(config, length, 2 if TYPES in ports else 0)),
        labels=label_names(config.id2label, None) if is_classifier else None,
        inputs=tuple(inputs),
        length=length,
        pad_id=config.pad_token_id or 0,
    )


def text_folder(path: Path) -> Path | None:
    """The folder that holds tokenizer.json of an ONNX file or a compiled directory; None without one.

    It is `text` in the directory, or the folder that contains the path, or, if that is called `onnx`, its
    parent, as on the hub.
    """
    beside = path.absolute().parent
    folders = (path / TEXT, beside, beside.parent) if beside.name == "onnx" else (path / TEXT, beside)
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def _limits(config: _Config, length: int | None, n_types: int) -> _Limits:
    kind = config.model_type
    family = "roberta" if kind in _AS_ROBERTA else TEXT_FAMILIES.get(kind, kind)
    offset = 1 + (1 if config.pad_token_id is None else config.pad_token_id) if family == "roberta" else 0
    most = config.max_position_embeddings - offset
    return _Limits(family, config.vocab_size, n_types, min(most, length or most), offset)
