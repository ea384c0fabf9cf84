"""Turn text into token ids and types."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import tokenizers

from pliant.arrays import Int32
from pliant.errors import InputError, ModelError
from pliant.models.examples import Example

_CHARS_PER_TOKEN = 16
"""In nearly every text, this many characters are several tokens."""


@dataclass(frozen=True, slots=True)
class TokenizedInput:
    """One tokenised input, with special tokens, unpadded."""

    ids: Int32[np.ndarray, " tokens"]
    types: Int32[np.ndarray, " tokens"]

    @property
    def n_tokens(self) -> int:
        return len(self.ids)


@runtime_checkable
class InputLimits(Protocol):
    """The input limits of a model; a ModelSpec is one."""

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
    """A loaded tokenizer.json with the limits of its model."""

    inner: tokenizers.Tokenizer
    spec: InputLimits
    source: Path

    def encode(self, text: str, pair: str | None = None) -> TokenizedInput:
        """Ids and types of `text`, or of the sentence pair (`text`, `pair`).

        RoBERTa and DistilBERT have no types: theirs are zero. Raises InputError for a text without content or
        of more tokens than the model has positions (text is never truncated), and ModelError when the
        tokenizer returns an id for which the model has no embedding.
        """
        self._check_beginning(text)
        encoding = self._encoding(text, pair)
        ids = np.array(encoding.ids, np.int32)
        self._check(ids, encoding)
        has_types = self.spec.n_types > 1 and self.spec.family != "roberta"
        types = np.array(encoding.type_ids, np.int32) if has_types else np.zeros(len(ids), np.int32)
        return TokenizedInput(ids, types)

    def truncate(
        self, text: str, pair: str | None = None, max_tokens: int | None = None
    ) -> tuple[str, str | None]:
        """`text` and `pair`, truncated to `max_tokens`, by default the model's limit.

        Inputs that fit are returned unchanged. Of a pair, the longer text is cut down to the other's length,
        then both. Raises InputError for a text without content.
        """
        most = min(max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        texts = [text] if pair is None else [text, pair]
        while True:
            encoding = self._encoding(texts[0], texts[1] if pair is not None else None)
            excess = len(encoding.ids) - most
            if excess <= 0:
                return texts[0], None if pair is None else texts[1]
            tokens = list(zip(encoding.sequence_ids, encoding.offsets, strict=True))
            ends = [[end for number, (_, end) in tokens if number == i] for i in range(len(texts))]
            lengths = _shorten([len(e) for e in ends], excess)
            # A prefix may have more tokens than it had as part of the whole text, so check again.
            before = texts
            texts = [t[: _cut(e, n, len(t))] for t, e, n in zip(texts, ends, lengths, strict=True)]
            if texts == before:
                raise InputError(f"no part of the text {text[:40]!r} fits into {most} tokens; allow more.")

    def _encoding(self, text: str, pair: str | None) -> tokenizers.Encoding:
        require_content(text, "the text")
        if pair is not None:
            require_content(pair, "the second text of the pair")
        try:
            return self.inner.encode(text, pair)
        except (TypeError, ValueError) as e:
            raise InputError(f"the text {text[:40]!r} is not valid Unicode: {e}") from e

    def _check_beginning(self, text: str) -> None:
        """Refuse a text whose beginning is far too long, without tokenising the rest.

        A limit on characters alone does not work: blanks are no tokens, and a long word may be a single one.
        """
        n_chars = _CHARS_PER_TOKEN * self.spec.max_tokens
        if isinstance(text, str) and len(text) > 2 * n_chars and text[:n_chars].strip():
            n_tokens = len(self._encoding(text[:n_chars], None).ids)
            if n_tokens > 2 * self.spec.max_tokens:  # the cut cannot account for this excess
                raise InputError(
                    f"the first {n_chars} of the text's {len(text)} characters are {n_tokens} tokens long, "
                    f"but the model reads at most {self.spec.max_tokens}; shorten or split it."
                )

    def _check(self, ids: np.ndarray, encoding: tokenizers.Encoding) -> None:
        if sum(encoding.special_tokens_mask) == len(ids):
            raise InputError("the text has no token that the model knows; give at least one word.")
        if len(ids) > self.spec.max_tokens:
            raise InputError(
                f"the text is {len(ids)} tokens long, special tokens included, but the model reads at most "
                f"{self.spec.max_tokens}; shorten or split it."
            )
        refuse_padding(ids, self.spec)
        largest = int(ids.argmax())
        if ids.item(largest) >= self.spec.vocab:
            raise ModelError(
                f"{self.source} gives token {encoding.tokens[largest]!r} the id {ids[largest]}, but the "
                f"model has {self.spec.vocab} embeddings; take the tokenizer that the model was trained with."
            )


def open_tokenizer(directory: Path, spec: InputLimits) -> Tokenizer:
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
    except ValueError as e:  # raised by tokenizers for any damage
        raise ModelError(f"{path} cannot be read as a tokenizer: {e}") from e
    inner.no_padding()
    inner.no_truncation()
    return Tokenizer(inner, spec, path)


def encode_example(tokenizer: Tokenizer, example: Example) -> TokenizedInput:
    """As `Tokenizer.encode`, but an error names the example's file and line."""
    try:
        return tokenizer.encode(example.text, example.pair)
    except InputError as error:
        raise InputError(str(error) if example.where is None else f"{example.where}: {error}") from error


def require_content(text: object, what: str) -> None:
    """Raise InputError unless `text`, called `what` in the message, is one text that is not blank."""
    if isinstance(text, list | tuple):
        raise InputError(
            f"{what} is a {type(text).__name__} of {len(text)}; give a str. A call takes one text, a pair as "
            "(text, pair), or a list of texts."
        )
    if not isinstance(text, str):
        raise InputError(f"{what} is of type {type(text).__name__}; give a str.")
    if not text.strip():
        raise InputError(f"{what} is empty; give at least one word.")


def refuse_padding(ids: np.ndarray, spec: InputLimits) -> None:
    """Raise InputError for RoBERTa's padding token, which has no position: later tokens would shift."""
    if spec.family == "roberta" and spec.position_offset - 1 in ids:
        raise InputError("the text contains the model's padding token; leave it out.")


def _cut(ends: list[int], n_tokens: int, n_chars: int) -> int:
    """Where to cut a text of `n_chars` for `n_tokens` of its tokens, which end at `ends`; never at 0.

    Tokens of one character share its end: if that is the end of the text, the cut is before the character.
    """
    if n_tokens >= len(ends):
        return ends[-1] if ends else n_chars
    end = ends[n_tokens - 1]
    if 0 < end < n_chars:
        return end
    return max((e for e in ends[:n_tokens] if 0 < e < n_chars), default=n_chars)


def _shorten(lengths: list[int], excess: int) -> list[int]:
    """One or two lengths reduced by `excess` in total, the longer one first; none below 1 that was not 0."""
    room = sum(lengths) - excess
    if len(lengths) == 1 or 0 in lengths:
        return [min(length, max(1, room)) for length in lengths]
    room = max(2, room)
    short = min(*lengths, room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]
