"""Tabulate the effect of a tokenizer's normalizer and pre-tokenizer on each code point, by calling the
library.

The tables therefore have the library's Unicode version. Each code point has a record: its replacement before
decomposition, its decomposition, its combining class, its final replacement, and its class for splitting
words. c/model/normalize.c uses the records.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from pliant.arrays import UInt16, UInt32

BLOCK = 128
_LAST = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_HANGUL = range(0xAC00, 0xAC00 + 11172)  # decomposed and composed by rule
_APART = "\U0010ffff"
"""A separator of code points that must not interact: no code point maps to it, and it is unchanged."""
KEPT, DROPPED, SPACE, APART = 0, 1, 2, 3
_WORD, _BLANK, _PUNCTUATION = 0, 1, 2
Normalize = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class NormalizerSteps:
    """A normalizer in steps; each works on single code points, except the ordering and composition of marks.

    `first` maps a code point to itself, nothing, a space, or itself between spaces; then marks are decomposed
    by `decompose`, ordered, and composed if `composes`; `last` maps each remaining code point. A step that is
    None is skipped.
    """

    first: Normalize | None
    decompose: Normalize | None
    composes: bool
    last: Normalize | None


@dataclass(frozen=True, slots=True, eq=False)
class CharacterTables:
    """`records[index[BLOCK * blocks[c // BLOCK] + c % BLOCK]]` is the record of code point c.

    Columns of a record: first, combining class, class, unused; decomposition and last in `sequences` (0: the
    code point itself), where each entry is its length followed by that many code points. `composed` are
    (first, second, composite), ascending.
    """

    blocks: UInt16[np.ndarray, " blocks"]
    index: UInt16[np.ndarray, " indices"]
    records: UInt32[np.ndarray, "records 3"]
    sequences: UInt32[np.ndarray, " words"]
    composed: UInt32[np.ndarray, "pairs 3"]


@dataclass(slots=True)
class _Sequences:
    """A list of distinct sequences of code points."""

    words: list[int] = field(default_factory=lambda: [0])
    known: dict[str, int] = field(default_factory=dict)

    def place(self, text: str) -> int:
        if text not in self.known:
            self.known[text] = len(self.words)
            self.words += [len(text), *map(ord, text)]
        return self.known[text]


def character_tables(steps: NormalizerSteps) -> CharacterTables:
    """The tables of a normalizer before BERT's pre-tokenizer."""
    sequences = _Sequences()
    first = {} if steps.first is None else find_changes(steps.first)
    decomposed = {} if steps.decompose is None else find_changes(steps.decompose)
    last = {} if steps.last is None else find_changes(steps.last)
    combining = {} if steps.decompose is None else combining_classes()
    found: dict[tuple[int, ...], int] = {(0, 0, 0): 0}
    index = np.zeros(_LAST, np.uint16)
    classes = word_classes()
    for c in sorted({*first, *decomposed, *last, *combining, *classes} - set(_HANGUL)):
        own = chr(c)
        kinds = _first(own, first.get(c, own)) | combining.get(c, 0) << 8 | classes.get(c, 0) << 16
        places = [sequences.place(x[c]) if c in x else 0 for x in (decomposed, last)]
        index[c] = found.setdefault((kinds, *places), len(found))
    rows = index.reshape(-1, BLOCK)
    unique, blocks = np.unique(rows, axis=0, return_inverse=True)
    return CharacterTables(
        blocks.reshape(-1).astype(np.uint16),
        unique.reshape(-1),
        np.array(list(found), np.uint32),
        np.array(sequences.words, np.uint32),
        np.array(compositions() if steps.composes else [(0, 0, 0)], np.uint32).reshape(-1, 3),
    )


def _first(own: str, text: str) -> int:
    return {own: KEPT, "": DROPPED, " ": SPACE, f" {own} ": APART}[text]


def find_changes(normalize: Normalize) -> Mapping[int, str]:
    """The result for every code point that `normalize` changes."""
    found: dict[int, str] = {}
    for block in _blocks(range(_LAST)):
        text = _APART.join(map(chr, block))
        after = normalize(text)
        if after == text:
            continue
        parts = zip(block, after.split(_APART), strict=True)
        found |= {c: part for c, part in parts if part != chr(c)}
    return found


def _blocks(points: Iterable[int], size: int = 4096) -> Iterable[list[int]]:
    known = [c for c in points if c not in _SURROGATES and chr(c) != _APART]
    return (known[i : i + size] for i in range(0, len(known), size))


@cache
def combining_classes() -> Mapping[int, int]:
    """The canonical combining class of every mark, from its position when the library sorts it among known
    marks.
    """
    known = {
        unicodedata.combining(chr(c)): chr(c) for c in range(0x300, _LAST) if unicodedata.combining(chr(c))
    }
    order = sorted(known)
    normalize = normalizers.NFD().normalize_str
    high = "".join(known[max(order)])
    marks = []
    for block in _blocks(range(_LAST)):  # a mark is sorted before one of the highest class
        after = normalize(_APART.join(f"{high}{chr(c)}" for c in block)).split(_APART)
        marks += [c for c, text in zip(block, after, strict=True) if not text.startswith(high)]
    marks += [ord(high)]
    classes = {}
    for c in marks:
        if len(normalize(chr(c))) == 1:
            least = [k for k in order if normalize(known[k] + chr(c)) == known[k] + chr(c)]
            classes[c] = max(least, default=order[0])
    return classes


@cache
def compositions() -> list[tuple[int, int, int]]:
    """(first, second, composite) of all canonical compositions except Hangul."""
    compose, decompose = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    found = []
    for c, parts in find_changes(decompose).items():
        if c in _HANGUL or len(parts) < 2 or compose(parts) != chr(c):
            continue
        first = compose(parts[:-1])
        if len(first) == 1:
            found.append((ord(first), ord(parts[-1]), c))
    return sorted(found)


@cache
def word_classes() -> Mapping[int, int]:
    """Blanks and punctuation of BERT's pre-tokenizer; all other code points belong to words."""
    cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    found: dict[int, int] = {}
    for block in _blocks(range(_LAST)):
        if len(cut("".join(map(chr, block)))) == 1:  # a word
            continue
        pieces = cut("".join(f"a{chr(c)}" for c in block) + "a")
        starts = {start: text for text, (start, _) in pieces}
        for i, c in enumerate(block):
            if starts.get(2 * i + 1) == chr(c):
                found[c] = _PUNCTUATION
            elif 2 * i + 2 in starts:
                found[c] = _BLANK
    return found


def normalizer_steps(normalizer: Mapping[str, object] | None) -> tuple[NormalizerSteps, Sequence[str]] | None:
    """The steps of a normalizer of tokenizer.json, and the texts (old, new) that it replaces before them.

    None for a normalizer that cannot be expressed in such steps.
    """
    if normalizer is None:
        return NormalizerSteps(None, None, False, None), ()
    if normalizer["type"] == "BertNormalizer":
        return _bert(normalizer), ()
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    assert isinstance(parts, list)
    return _sequence(parts)


def _bert(options: Mapping[str, object]) -> NormalizerSteps:
    lowers = bool(options["lowercase"])
    strips = lowers if options["strip_accents"] is None else bool(options["strip_accents"])
    first = normalizers.BertNormalizer(
        clean_text=bool(options["clean_text"]),
        handle_chinese_chars=bool(options["handle_chinese_chars"]),
        strip_accents=False,
        lowercase=False,
    )
    last = normalizers.BertNormalizer(  # StripAccents has another set of marks
        clean_text=False, handle_chinese_chars=False, strip_accents=strips, lowercase=lowers
    )
    return NormalizerSteps(
        first=first.normalize_str,
        decompose=normalizers.NFD().normalize_str if strips else None,
        composes=False,
        last=last.normalize_str if strips or lowers else None,
    )


def _sequence(parts: Sequence[Mapping[str, object]]) -> tuple[NormalizerSteps, Sequence[str]] | None:
    """At most one replacement of a text, a normal form, and lower case, in this order."""
    kinds = [str(part["type"]) for part in parts]
    replaced: Sequence[str] = ()
    if kinds[:1] == ["Replace"]:
        pattern = parts[0]["pattern"]
        if not isinstance(pattern, dict) or "String" not in pattern:
            return None
        replaced, kinds = (str(pattern["String"]), str(parts[0]["content"])), kinds[1:]
    form = None
    if kinds[:1] and kinds[0] in ("NFC", "NFD", "NFKC", "NFKD"):
        form, kinds = kinds[0], kinds[1:]
    if kinds not in ([], ["Lowercase"]):
        return None
    whole = {
        "NFC": normalizers.NFD,
        "NFKC": normalizers.NFKD,
        "NFD": normalizers.NFD,
        "NFKD": normalizers.NFKD,
    }
    decompose = None if form is None else whole[form]().normalize_str
    last = normalizers.Lowercase().normalize_str if kinds else None
    return NormalizerSteps(None, decompose, form in ("NFC", "NFKC"), last), replaced
