"""A small store that knows what its submodels answer right."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy

GRID = AccuracyTable(
    500,
    tuple(
        AccuracyEntry(n, m, bits, 0.6 + 0.05 * n + 0.02 * m - 0.05 / bits, -1 + 0.1 * n + 0.04 * m)
        for n in (1, 2, 3, 4)
        for m in (2, 4)
        for bits in (2, 6, 32)
    ),
)


@pytest.fixture(scope="session")
def graded_store(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of four layers and two widths, graded by GRID; never write into it."""
    model = tiny_model("bert", n_layers=4, widths=(2, 4))
    path = build(open_checkpoint(model), tmp_path_factory.mktemp("graded") / "graded")
    put_accuracy(path, GRID)
    return path
