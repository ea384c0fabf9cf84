"""Turn text into token ids and types. Knows the tokenizer file and the model's limits, not its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import tokenizers

from pliant.arrays import Int32
from pliant.errors import InputError, ModelError


@dataclass(frozen=True, slots=True)
class Encoded:
    """One input as the model reads it, special tokens included, unpadded."""

    ids: Int32[np.ndarray, " tokens"]
    types: Int32[np.ndarray, " tokens"]

    @property
    def n_tokens(self) -> int:
        return len(self.ids)


@runtime_checkable
class Limits(Protocol):
    """What a model can read; a ModelSpec is one."""

    @property
    def family(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def n_types(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def position_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A loaded tokenizer.json beside the limits of the model it feeds."""

    inner: tokenizers.Tokenizer
    spec: Limits
    source: Path

    def encode(self, text: str, pair: str | None = None) -> Encoded:
        """Ids and types of `text`, or of the sentence pair (`text`, `pair`).

        RoBERTa and DistilBERT tell no types apart: theirs are zero. Raises InputError for a text
        without content or of more tokens than the model has positions (nothing is ever cut off), and
        ModelError when the tokenizer yields an id the model has no embedding for.
        """
        _require_content(text, "the text")
        if pair is not None:
            _require_content(pair, "the second text of the pair")
        try:
            encoding = self.inner.encode(text, pair)
        except (TypeError, ValueError) as e:
            raise InputError(f"the text {text[:40]!r} is not valid Unicode: {e}") from e
        ids = np.array(encoding.ids, np.int32)
        types = np.array(encoding.type_ids, np.int32)
        self._check(ids, encoding)
        has_types = self.spec.n_types > 1 and self.spec.family != "roberta"
        return Encoded(ids, types if has_types else np.zeros_like(types))

    def _check(self, ids: np.ndarray, encoding: tokenizers.Encoding) -> None:
        if sum(encoding.special_tokens_mask) == len(ids):
            raise InputError("the text holds no token the model knows; give at least one word.")
        if len(ids) > self.spec.max_tokens:
            raise InputError(
                f"the text is {len(ids)} tokens long, special tokens included, but the model reads at most "
                f"{self.spec.max_tokens}; shorten or split it."
            )
        if self.spec.family == "roberta" and self.spec.position_offset - 1 in ids:
            # RoBERTa gives padding no position of its own, so the tokens behind it would shift.
            raise InputError("the text contains the model's padding token; leave it out.")
        if int(ids.max()) >= self.spec.vocab:
            token = encoding.tokens[int(ids.argmax())]
            raise ModelError(
                f"{self.source} gives token {token!r} the id {int(ids.max())}, but the model has "
                f"{self.spec.vocab} embeddings; take the tokenizer that the model was trained with."
            )


def open_tokenizer(directory: Path, spec: Limits) -> Tokenizer:
    """The tokenizer of a model directory; padding and truncation set in its file are switched off.

    Raises ModelError when tokenizer.json is missing or damaged.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{path} is missing. Write it with "
            f'transformers.AutoTokenizer.from_pretrained("{directory}").save_pretrained("{directory}").'
        )
    try:
        inner = tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except ValueError as e:  # what tokenizers raises for any damage
        raise ModelError(f"{path} cannot be read as a tokenizer: {e}") from e
    inner.no_padding()
    inner.no_truncation()
    return Tokenizer(inner, spec, path)


def _require_content(text: str, what: str) -> None:
    if not text.strip():
        raise InputError(f"{what} is empty; give at least one word.")
