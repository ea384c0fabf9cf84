"""Lengths of real inputs, resampled with replacement.

SNLI: the premises of its pairs (median 14 words and marks; the paper's inputs have a median of 12), XQuAD:
the questions of its English part, which are SQuAD's (11; the paper's SQuAD: 9), IMDB: whole reviews. A word
is a run of letters and digits, a mark of punctuation one more.
"""

import gzip
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from report import ROOT

_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")


def lengths(test: str, count: int, seed: int = 0) -> np.ndarray | None:
    """`count` lengths of a data set ("SNLI", "SQuAD", "IMDB"); None if it is not available."""
    found = pool(test)
    return None if found is None else np.random.default_rng(seed).choice(found, count)


@cache
def pool(test: str) -> np.ndarray | None:
    """All lengths of the data set."""
    try:
        return np.array(_READERS[test](), np.int64)
    except FileNotFoundError:
        return None


def _snli() -> list[int]:
    rows = (DATA / "snli" / "snli_1k.txt").read_text().splitlines()
    return [_length(row.split("\t")[1]) for row in rows]


def _squad() -> list[int]:
    read = json.loads((DATA / "xquad" / "xquad.en.json").read_text())
    paragraphs = [p for article in read["data"] for p in article["paragraphs"]]
    return [_length(asked["question"]) for p in paragraphs for asked in p["qas"]]


def _imdb() -> list[int]:
    found: list[int] = []
    with gzip.open(DATA / "imdb" / "test.tsv.gz", "rt") as file:
        next(file)
        found += [_length(row.rpartition("\t")[0]) for row in file]
    return found


def _length(text: str) -> int:
    return max(len(_WORD.findall(text)), 1)


_READERS: Mapping[str, Callable[[], list[int]]] = {"SNLI": _snli, "SQuAD": _squad, "IMDB": _imdb}
