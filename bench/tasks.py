"""The five tasks of the STI evaluation, each with its training, held-out and reported examples.

SST-2, RTE and MRPC (standing in for QQP) have a train and a dev part; QNLI has only its dev part, of which
every fifth row is used as the dev part and the others for training. IMDB reviews are cut to 128 tokens; every
25th of the test part is reported. Everything that is chosen by measurement (importance, the accuracy grid)
uses a third part, which is neither used for training nor reported: for SST-2 one half of dev, as phrases of
its validation part also occur in its training part; for the other tasks every tenth row of the training part.
The stretched models of `docs/results/sti.md` and every bench read the same parts through this module.

As a script it writes the parts of all tasks: `python bench/tasks.py DATA OUT`.
"""

import csv
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from pliant.api.resolve import resolve

TaskName = Literal["sst2", "rte", "qnli", "mrpc", "imdb"]
TASKS: tuple[TaskName, ...] = ("sst2", "rte", "qnli", "mrpc", "imdb")
_QNLI_FOLD = 5
_HELD_OUT_FOLD = 10
_IMDB_FOLD = 25
_IMDB_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Task:
    """The files of a task's parts; `labels` in the order of the classifier's rows; `has_f1` as GLUE reports
    it.

    F1 is that of the label at `labels[1]`.
    """

    name: TaskName
    train: Path
    held_out: Path
    dev: Path
    labels: tuple[str, ...]
    has_f1: bool


def find_task(name: TaskName, data: Path, scratch: Path) -> Task:
    """The task's files under `data`; derived parts are written to `scratch`."""
    entailment = ("entailment", "not_entailment")
    match name:
        case "sst2":
            chosen_on, dev = _halves(data / "sst2/dev.tsv", scratch, ("sst2-dev-a", "sst2-dev-b"))
            return Task(name, data / "sst2/train.tsv", chosen_on, dev, ("negative", "positive"), has_f1=False)
        case "rte":
            train, held_out = _split(data / "rte/train.tsv", scratch, ("rte-train", "rte-held-out"))
            return Task(name, train, held_out, data / "rte/dev.tsv", entailment, has_f1=False)
        case "qnli":
            rest, dev = _split(data / "qnli/dev.tsv", scratch, ("qnli-rest", "qnli-dev"), _QNLI_FOLD)
            train, held_out = _split(rest, scratch, ("qnli-train", "qnli-held-out"))
            return Task(name, train, held_out, dev, entailment, has_f1=False)
        case "mrpc":
            whole, dev = data / "mrpc/msr_paraphrase_train.txt", data / "mrpc/msr_paraphrase_test.txt"
            train, held_out = _split(whole, scratch, ("mrpc-train", "mrpc-held-out"))
            return Task(name, train, held_out, dev, ("different", "equivalent"), has_f1=True)
        case "imdb":
            whole, test = (_cut(data / f"imdb/{part}.tsv.gz", scratch) for part in ("train", "test"))
            train, held_out = _split(whole, scratch, ("imdb-train", "imdb-held-out"))
            _, dev = _split(test, scratch, ("imdb-rest", "imdb-dev"), _IMDB_FOLD)
            return Task(name, train, held_out, dev, ("negative", "positive"), has_f1=False)


def _cut(packed: Path, out: Path) -> Path:
    """Reviews of `packed` as a TSV, each cut to 128 tokens at the end of a word piece."""
    tokenizer = Tokenizer.from_file(str(resolve("sst2").path / "tokenizer.json"))
    tokenizer.enable_truncation(_IMDB_TOKENS)
    tokenizer.no_padding()
    with gzip.open(packed, "rt", encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    cut = tokenizer.encode_batch([row[0] for row in rows])
    texts = [row[0][: max(end for _, end in code.offsets)] for row, code in zip(rows, cut, strict=True)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / packed.name.removesuffix(".gz")
    lines = ["\t".join(header), *("\t".join([text, *row[1:]]) for text, row in zip(texts, rows, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _halves(whole: Path, out: Path, names: tuple[str, str]) -> tuple[Path, Path]:
    """Every second row of `whole`, in order of label, number of words and place, to each of the two files."""
    header, *rows = whole.read_text(encoding="utf-8").rstrip("\n").split("\n")
    texts = [row.rsplit("\t", 1) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (texts[i][1], len(texts[i][0].split()), i))
    out.mkdir(parents=True, exist_ok=True)
    first, second = (out / f"{name}.tsv" for name in names)
    for path, kept in ((first, order[::2]), (second, order[1::2])):
        path.write_text("\n".join([header, *(rows[i] for i in kept)]) + "\n", encoding="utf-8")
    return first, second


def _split(whole: Path, out: Path, names: tuple[str, str], fold: int = _HELD_OUT_FOLD) -> tuple[Path, Path]:
    """Rows 0, fold, 2 fold, ... of `whole` go to the second of the two files, all others to the first."""
    header, *rows = whole.read_text(encoding="utf-8").rstrip("\n").split("\n")
    out.mkdir(parents=True, exist_ok=True)
    kept, taken = (out / f"{name}.tsv" for name in names)
    kept.write_text(
        "\n".join([header, *(r for i, r in enumerate(rows) if i % fold)]) + "\n", encoding="utf-8"
    )
    taken.write_text("\n".join([header, *rows[::fold]]) + "\n", encoding="utf-8")
    return kept, taken


if __name__ == "__main__":
    for task in TASKS:
        found = find_task(task, Path(sys.argv[1]), Path(sys.argv[2]))
        print(found.train, found.held_out, found.dev)
