"""Requests to a way and their results: texts, answers, records."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import checkout  # noqa: F401 - research and testbed lie there
from pliant.models.examples import read_examples
from report import ROOT
from research.deadline_world import TimedRequest

_DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")


@dataclass(frozen=True, slots=True)
class Answer:
    """A way's answer to a request; `accuracy` is the expected accuracy, None if it is not stated.

    It took `work_s` seconds of computing by its level; a hedge that is not used takes `unused_s` (expected).
    """

    endpoint: str
    label: str
    accuracy: float | None = None
    work_s: float = 0.0
    unused_s: float = 0.0


class RefusedError(Exception):
    """A way refused a request."""


Ask = Callable[[str, float, float], Answer]
"""(text, deadline_s, floor) -> the answer. Called by many threads. Raises RefusedError or PliantError."""


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one request: `label` is None if it was refused, `right` is the label of the data set."""

    number: int
    at_s: float
    deadline_s: float
    floor: float
    seconds: float
    endpoint: str | None
    label: str | None
    accuracy: float | None
    right: str
    reason: str = ""
    work_s: float = 0.0
    unused_s: float = 0.0

    @property
    def in_time(self) -> bool:
        return self.label is not None and self.seconds <= self.deadline_s

    def attained(self, whole: float) -> bool:
        """Whether it was in time and at its accuracy floor; an answer without an accuracy counts as the whole
        model's.
        """
        accuracy = whole if self.accuracy is None else self.accuracy
        return self.in_time and accuracy >= self.floor - 1e-9


@dataclass(frozen=True, slots=True)
class Texts:
    """Sentences with their labels, by number of words."""

    by_words: dict[int, list[tuple[str, str]]]

    def of(self, request: TimedRequest) -> tuple[str, str]:
        """The request's text and label; deterministic."""
        n = min(self.by_words, key=lambda words: abs(words - request.n_words))
        return self.by_words[n][request.pick % len(self.by_words[n])]


def read_texts() -> Texts:
    """SST-2's dev sentences. Raises SystemExit if they are not available."""
    path = _DATA / "sst2" / "dev.tsv"
    if not path.exists():
        raise SystemExit(f"no sentences at {path}; set PLIANT_DATA to the folder of data sets.")
    names = ("negative", "positive")
    found: dict[int, list[tuple[str, str]]] = {}
    for example in read_examples(path, names):
        found.setdefault(len(example.text.split()), []).append((example.text, names[example.label]))
    return Texts(found)


def unused_share(records: Sequence[Record]) -> float:
    """The fraction of the computing of answers that was spent on hedges that were not used."""
    unused_s = sum(r.unused_s for r in records)
    return unused_s / max(unused_s + sum(r.work_s for r in records), 1e-9)


def shares(records: Sequence[Record]) -> dict[str, float]:
    """Each endpoint's share of the answers."""
    counts = Counter(r.endpoint for r in records if r.endpoint is not None)
    total = max(sum(counts.values()), 1)
    return {name: count / total for name, count in sorted(counts.items())}
