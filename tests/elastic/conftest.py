"""A tiny sentiment task and the options of a stretching run that takes a second."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.elastic.stretch import stretch
from pliant.elastic.stretch_options import StretchOptions
from tests.tiny import tiny_spec, write_model

GOOD = ("a good film", "it is good", "the story was good", "good plot and good actor", "the movie is good")
BAD = ("a bad film", "it is bad", "the story was bad", "bad plot and bad actor", "no movie is as bad")


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., StretchOptions]:
    """`options(**changes)`: 3 layers of 4 heads, 40 sentences, five steps an epoch."""
    return _make(tmp_path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `options()` gives when nothing interrupts it."""
    return stretch(_make(tmp_path_factory.mktemp("whole"))()).out


def _make(folder: Path) -> Callable[..., StretchOptions]:
    rows = [f"{text}\t1" for text in GOOD] + [f"{text}\t0" for text in BAD]
    for name, copies in (("train.tsv", 4), ("dev.tsv", 1)):
        (folder / name).write_text("sentence\tlabel\n" + "\n".join(rows * copies) + "\n", encoding="utf-8")
    model = write_model(folder / "model", tiny_spec(is_classifier=False, n_layers=3))

    def make(**changes: object) -> StretchOptions:
        values = {"tune_epochs": 2.0, "distil_epochs": 2.0, "final_epochs": 1.0, "batch": 8, "rate": 1e-3}
        values |= {"model": model, "train": folder / "train.tsv", "dev": folder / "dev.tsv"}
        return StretchOptions(**{"out": folder / "out", **values, **changes})  # type: ignore[arg-type]

    return make
