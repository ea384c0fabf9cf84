"""64 texts in batches against one at a time: the shipped classifier, and MiniLM-L6 from ONNX, on two threads.

Texts have 4 to 64 tokens, evenly, in random order. The classifier reads text; its weights are in memory, or
are read from disk in each run. MiniLM gets ids in buckets of 8 tokens; one at a time it runs every exact
length, compiled beforehand. onnxruntime runs the same models in float32 on as many threads: one text at a
time, all 64 padded to the longest, and sorted by length in groups of 8.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import tokenizers

import pliant
from paired import paired
from pliant.api.resolve import resolve
from pliant.ir.reply import Reply
from pliant.run.session.text_session import TextSession
from report import Report, interleaved, options
from runtimes import THREADS
from text_models import MINILM, export, export_classifier

BAR = 1.3
N_TEXTS, LENGTHS = 64, (4, 64)
GROUP = 8
BUCKETS = tuple(range(8, LENGTHS[1] + 1, 8))
PAUSE_S = 0.1
"""Pause before each run, because the threads of the previous runtime still spin for a while."""
WORDS = (
    *("the", "a", "it", "is", "was", "not", "no", "and", "or", "but", "of", "to", "in", "on", "good", "bad"),
    *("film", "movie", "story", "plot", "actor", "with", "this", "that", "very", "more", "all", "time"),
)
"""Words of one token each."""

Feeds = dict[str, np.ndarray]
Answers = Callable[[], list[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Subject:
    """Ways to answer the same texts, by name; `one` is one at a time and `many` all at once."""

    name: str
    ways: Mapping[str, Answers]
    is_claimed: bool = True


ONE, MANY = "pliant, one at a time", "pliant, all at once"


def main() -> None:
    opts = options(__doc__ or "")
    rounds = 3 if opts.quick else 31
    workload = f"{N_TEXTS} texts of {LENGTHS[0]} to {LENGTHS[1]} tokens, {THREADS} threads, {rounds} rounds"
    report = Report("batch", workload, opts)
    report.note(
        "Ratios are texts per second relative to pliant one at a time: the median of paired rounds with its "
        "95 % interval. For the classifier, times include tokenising for every runtime; pliant's weights "
        "have 6 bits. Differences of answers are the largest over all texts, relative to the largest value."
    )
    with TemporaryDirectory() as name, ExitStack() as stack:
        for subject in (*_classifier(Path(name), stack, opts.quick), _encoder(Path(name), stack)):
            _measure(report, subject, rounds)
    report.finish()


def _classifier(folder: Path, stack: ExitStack, is_quick: bool) -> list[Subject]:
    """The shipped model, with its weights in memory and read in each run."""
    directory, texts = resolve("sst2").path, _texts()
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    file = export_classifier(directory, folder / "sst2.onnx")
    peers = _peers(file, partial(_tokenised, tokenizer, texts))
    found = []
    for what, preload in (("in memory", "1GB"), ("read in each run", 0))[: 1 if is_quick else 2]:
        session = stack.enter_context(pliant.open("sst2", latency="10s", preload=preload, threads=THREADS))
        ours = {ONE: partial(_texts_alone, session, texts), MANY: partial(_texts_together, session, texts)}
        found.append(Subject(f"sst2, weights {what}", ours | (peers if preload else {}), bool(preload)))
    return found


def _encoder(folder: Path, stack: ExitStack) -> Subject:
    """MiniLM-L6 from ONNX, fed ids."""
    file = export(MINILM, folder / "minilm.onnx", is_open=True)
    feeds = _ids()
    exact = stack.enter_context(pliant.compile(file, threads=THREADS, images=N_TEXTS))
    bucketed = stack.enter_context(pliant.compile(file, threads=THREADS, buckets={"tokens": BUCKETS}))
    ours: dict[str, Answers] = {
        ONE: lambda: [exact.run(one)["y"][0] for one in feeds],
        "pliant, one at a time in buckets": lambda: [bucketed.run(one)["y"][0] for one in feeds],
        MANY: lambda: [one["y"][0] for one in bucketed.run_many(feeds)],
    }
    return Subject("MiniLM-L6 from ONNX", ours | _peers(file, lambda: feeds))


def _texts_alone(session: TextSession[Any], texts: list[str]) -> list[np.ndarray]:
    return [_logits(session(text)) for text in texts]


def _texts_together(session: TextSession[Any], texts: list[str]) -> list[np.ndarray]:
    return [_logits(reply) for reply in session(texts)]


def _peers(file: Path, feeds: Callable[[], list[Feeds]]) -> dict[str, Answers]:
    """onnxruntime: one at a time, one padded batch, and sorted groups."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = THREADS, 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])

    def padded(size: int) -> list[np.ndarray]:
        given = feeds()
        order = sorted(range(len(given)), key=lambda i: given[i]["ids"].size)
        answers: dict[int, np.ndarray] = {}
        for first in range(0, len(order), size):
            group = order[first : first + size]
            (y,) = session.run(None, _padded([given[i] for i in group]))
            for row, i in zip(y, group, strict=True):
                answers[i] = row[: given[i]["ids"].size] if y.ndim == 3 else row
        return [answers[i] for i in range(len(given))]

    return {
        "onnxruntime, one at a time": lambda: [session.run(None, one)[0][0] for one in feeds()],
        "onnxruntime, all padded": lambda: padded(N_TEXTS),
        f"onnxruntime, sorted in groups of {GROUP}": lambda: padded(GROUP),
    }


def _measure(report: Report, subject: Subject, rounds: int) -> None:
    answers = {name: way() for name, way in subject.ways.items()}
    differences = {name: _difference(answers[ONE], found) for name, found in answers.items()}
    seconds, _ = interleaved({name: partial(_seconds, way) for name, way in subject.ways.items()}, rounds)
    rows = []
    for name, taken in seconds.items():
        ratio = paired(seconds[ONE], taken)
        rows.append(
            {
                "texts": name,
                "texts a second": N_TEXTS / median(taken),
                "/ pliant one at a time": str(ratio),
                "largest difference": f"{differences[name]:.1e}",
            }
        )
    report.table(subject.name, rows)
    if subject.is_claimed:
        gain = paired(seconds[ONE], seconds[MANY])
        note = f"{subject.name}; 95 % interval {gain.low:.3f} to {gain.high:.3f}; {_beside(seconds)}"
        bar = f"at least {BAR} times the texts a second of one at a time"
        report.claim("session.batch", gain.value, bar, gain.value >= BAR, note)


def _beside(seconds: Mapping[str, Sequence[float]]) -> str:
    """All at once against the fastest mode of onnxruntime."""
    theirs = {name: median(taken) for name, taken in seconds.items() if "onnxruntime" in name}
    best = min(theirs, key=lambda name: theirs[name])
    return f"{paired(seconds[best], seconds[MANY]).value:.2f} times the texts a second of {best}"


def _seconds(way: Answers) -> float:
    time.sleep(PAUSE_S)
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def _difference(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    largest = max(float(np.abs(a).max()) for a in wanted)
    return max(float(np.abs(a - b).max()) for a, b in zip(wanted, found, strict=True)) / largest


def _logits(reply: Reply[Any]) -> np.ndarray:
    assert reply.logits is not None
    return reply.logits


def _lengths() -> list[int]:
    """Evenly from the shortest to the longest, in random order."""
    found = np.linspace(*LENGTHS, N_TEXTS).round().astype(int)
    return [int(n) for n in np.random.default_rng(0).permutation(found)]


def _texts() -> list[str]:
    """As many words as make a text that long with the two special tokens."""
    random = np.random.default_rng(1)
    return [" ".join(random.choice(WORDS, n - 2)) for n in _lengths()]


def _ids() -> list[Feeds]:
    random = np.random.default_rng(2)
    return [
        {"ids": random.integers(1000, MINILM.vocabulary, (1, n)), "mask": np.ones((1, n), np.int64)}
        for n in _lengths()
    ]


def _tokenised(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[Feeds]:
    found = [np.array([one.ids], np.int64) for one in tokenizer.encode_batch(texts)]
    assert [ids.size for ids in found] == _lengths(), "a word is not one token"
    return [{"ids": ids, "mask": np.ones_like(ids)} for ids in found]


def _padded(group: Sequence[Feeds]) -> Feeds:
    longest = max(one["ids"].size for one in group)
    whole = {x: np.zeros((len(group), longest), np.int64) for x in ("ids", "mask")}
    for row, one in enumerate(group):
        for x, array in one.items():
            whole[x][row, : array.size] = array[0]
    return whole


if __name__ == "__main__":
    main()
