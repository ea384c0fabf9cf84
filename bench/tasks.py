"""The four tasks of the STI evaluation: which TSV trains, which is reported on. Knows no model.

SST-2, RTE and MRPC (standing in for QQP) have a train and a dev part; of QNLI there is only the dev
part, so every fifth row by position is held out and the others train (`split_qnli`). The stretched
models of `docs/results/sti.md` and every bench read the same parts through this module.

As a script it writes the parts of QNLI: `python bench/tasks.py DATA OUT`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TaskName = Literal["sst2", "rte", "qnli", "mrpc"]
TASKS: tuple[TaskName, ...] = ("sst2", "rte", "qnli", "mrpc")
_QNLI_FOLD = 5


@dataclass(frozen=True, slots=True)
class Task:
    """Where a task's parts lie; `labels` in the order of the classifier's rows; `has_f1` as GLUE reports it.

    F1 is that of the label at `labels[1]`.
    """

    name: TaskName
    train: Path
    dev: Path
    labels: tuple[str, ...]
    has_f1: bool


def find_task(name: TaskName, data: Path, scratch: Path) -> Task:
    """The task's files under `data`; QNLI's parts are written to `scratch` when they are not there yet."""
    match name:
        case "sst2":
            return Task(
                name, data / "sst2/train.tsv", data / "sst2/dev.tsv", ("negative", "positive"), has_f1=False
            )
        case "rte":
            labels = ("entailment", "not_entailment")
            return Task(name, data / "rte/train.tsv", data / "rte/dev.tsv", labels, has_f1=False)
        case "qnli":
            train, dev = split_qnli(data / "qnli/dev.tsv", scratch)
            return Task(name, train, dev, ("entailment", "not_entailment"), has_f1=False)
        case "mrpc":
            folder = data / "mrpc"
            train, dev = folder / "msr_paraphrase_train.txt", folder / "msr_paraphrase_test.txt"
            return Task(name, train, dev, ("different", "equivalent"), has_f1=True)


def split_qnli(whole: Path, out: Path) -> tuple[Path, Path]:
    """Write qnli-train.tsv and qnli-dev.tsv to `out`: rows 0, 5, 10, ... are held out, without chance."""
    header, *rows = whole.read_text(encoding="utf-8").rstrip("\n").split("\n")
    out.mkdir(parents=True, exist_ok=True)
    train, dev = out / "qnli-train.tsv", out / "qnli-dev.tsv"
    kept = [row for i, row in enumerate(rows) if i % _QNLI_FOLD]
    train.write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    dev.write_text("\n".join([header, *rows[::_QNLI_FOLD]]) + "\n", encoding="utf-8")
    return train, dev


if __name__ == "__main__":
    for path in split_qnli(Path(sys.argv[1]) / "qnli" / "dev.tsv", Path(sys.argv[2])):
        print(path)
