"""Print a tokenizer as tables of a C library (c/model/text.c): WordPiece or whole words, with BERT's
pre-tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pliant.compiler.aot.c_source import format_array, format_numbers, quote
from pliant.compiler.aot.model.character_tables import CharacterTables, character_tables, normalizer_steps
from pliant.compiler.aot.model.resident_tables import array_offsets, write_arrays
from pliant.models.tokenizer import Tokenizer

TEXT = "text.safetensors"
_PROBE = "a"
_WORD_BYTES = 1024
"""As text.h has it: what C keeps of a word."""
_MOST_CHARS = _WORD_BYTES // 4  # of UTF-8's longest


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched in the raw text, before normalisation."""

    content: str
    id: int


@dataclass(frozen=True, slots=True, eq=False)
class TextTables:
    """The tables of a tokenizer. `before` and `after` are the template's ids around a text."""

    characters: CharacterTables
    decomposes: bool
    composes: bool
    replaced: tuple[str, ...]
    vocabulary: tuple[bytes, ...]
    is_word_piece: bool
    prefix: str
    most_chars: int
    unknown: int
    added: tuple[AddedToken, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def write(self, out: Path) -> tuple[str, int]:
        """Write the tables' file; returns its C source and its bytes."""
        tables = self.characters
        pool = b"".join(self.vocabulary)
        ends = np.cumsum([0, *map(len, self.vocabulary)]).astype(np.uint32)
        slots = hash_slots(self.vocabulary)
        arrays = {
            "blocks": tables.blocks, "index": tables.index, "records": tables.records,
            "sequences": tables.sequences, "composed": tables.composed, "slots": slots, "words": ends,
            "pool": np.frombuffer(pool or b"\0", np.uint8),
        }  # fmt: skip
        layout, written = write_arrays(arrays, out / TEXT)
        at = array_offsets(layout)
        added = sorted(self.added, key=lambda token: -len(token.content.encode()))
        fields: dict[str, object] = {
            "file": f"{{{quote(TEXT)}, {written.n_bytes}u, UINT64_C({written.xxh3})}}",
            **{x: f"{at[x]}u" for x in arrays},
            **{"n_slots": f"{len(slots)}u", "n_composed": f"{len(tables.composed)}u"},
            **{"is_word_piece": int(self.is_word_piece), "most_chars": f"{self.most_chars}u"},
            "most_bytes": f"{max(map(len, self.vocabulary), default=0)}u",
            **{"decomposes": int(self.decomposes), "composes": int(self.composes)},
            **{"unknown": self.unknown, "prefix": quote(self.prefix)},
            **{"n_added": f"{len(added)}u", "added": "ADDED"},
            "replaced": quote(self.replaced[0]) if self.replaced else "NULL",
            "replacement": quote(self.replaced[1]) if self.replaced else "NULL",
            **{"before": "BEFORE", "n_before": f"{len(self.before)}u"},
            **{"after": "AFTER", "n_after": f"{len(self.after)}u"},
        }
        lines = [f"    .{name} = {value}," for name, value in fields.items()]
        source = [
            format_array("struct added ADDED", [f"{{{quote(t.content)}, {t.id}}}" for t in added], '{"", 0}'),
            format_numbers("int32_t BEFORE", self.before),
            format_numbers("int32_t AFTER", self.after),
            "\n".join(["static const struct text_model TEXT = {", *lines, "};"]),
        ]
        return "\n".join(source), layout.n_bytes


def text_tables(tokenizer: Tokenizer) -> TextTables | str:
    """The tables of a tokenizer, or the reason why it is not supported in C."""
    about = msgspec.json.decode(tokenizer.inner.to_str())
    reason = _refusal(about)
    if reason is not None:
        return reason
    steps = normalizer_steps(about["normalizer"])
    if steps is None:
        return "its normalizer has other steps than BERT's, or a replacement, a normal form and lower case"
    template = _template(tokenizer)
    if isinstance(template, str):
        return template
    model, vocabulary = about["model"], about["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    return TextTables(
        characters=character_tables(steps[0]),
        decomposes=steps[0].decompose is not None,
        composes=steps[0].composes,
        replaced=tuple(steps[1]),
        vocabulary=tuple(word.encode() for word in words),
        is_word_piece=model["type"] == "WordPiece",
        prefix=model.get("continuing_subword_prefix", ""),
        most_chars=model.get("max_input_chars_per_word", 0),
        unknown=vocabulary[model["unk_token"]],
        added=tuple(AddedToken(t["content"], t["id"]) for t in about["added_tokens"]),
        before=template[0],
        after=template[1],
    )


def _refusal(about: dict[str, Any]) -> str | None:
    """Why a tokenizer.json is not supported in C; None if it is."""
    model, cut = about["model"], about["pre_tokenizer"]
    kind = model.get("type")
    if kind not in ("WordPiece", "WordLevel"):
        return f"its tokenizer is {kind}; in C there are WordPiece and WordLevel"
    if cut is None or cut["type"] != "BertPreTokenizer":
        return "its words are not cut as BERT's are"
    if model["unk_token"] not in model["vocab"]:
        return f"its vocabulary lacks {model['unk_token']!r}"
    if (most_chars := model.get("max_input_chars_per_word", 0)) > _MOST_CHARS:
        return f"its words have up to {most_chars} characters; in C they have at most {_MOST_CHARS}"
    if kind == "WordLevel" and max(len(word.encode()) for word in model["vocab"]) > _WORD_BYTES:
        return f"a word of its vocabulary is longer than {_WORD_BYTES} bytes, the most in C"
    if sorted(model["vocab"].values()) != list(range(len(model["vocab"]))):
        return "its vocabulary has gaps"
    for token in about["added_tokens"]:
        if any(token[flag] for flag in ("single_word", "lstrip", "rstrip", "normalized")):
            return f"its added token {token['content']!r} is not found as plain text is"
    return None


def _template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | str:
    """The special tokens before and after a text."""
    whole = tokenizer.inner.encode(_PROBE)
    plain = tokenizer.inner.encode(_PROBE, add_special_tokens=False).ids
    n = len(plain)
    for at in range(len(whole.ids) - n + 1):
        if whole.ids[at : at + n] == plain and not any(whole.special_tokens_mask[at : at + n]):
            if any(whole.type_ids):
                return "its texts have types other than 0"
            return tuple(whole.ids[:at]), tuple(whole.ids[at + n :])
    return "its special tokens are not before and after a text"


def hash_slots(words: Sequence[bytes]) -> np.ndarray:
    """An open-addressing hash table: uint32, a word's number plus 1 in the first free slot from its hash on;
    0 is free.
    """
    size = 1 << max(2, (2 * len(words) - 1).bit_length())
    slots = np.zeros(size, np.uint32)
    for number, word in enumerate(words):
        at = fnv1a(word) & (size - 1)
        while slots[at]:
            at = (at + 1) & (size - 1)
        slots[at] = number + 1
    return slots


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value
