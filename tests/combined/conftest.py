"""What tests of several things at once share: a small model of measured accuracy, and a busy machine."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from pliant.store.manifest import put_accuracy
from tests.run.conftest import kernel_cache as kernel_cache
from tests.run.submodel.test_elastic_requests import GRID

N_CORES = 2


@pytest.fixture(scope="module")
def graded_store(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four layers that knows what its submodels answer right."""
    model = tiny_model("bert", n_layers=4, widths=(2, 4))
    path = build(open_checkpoint(model), tmp_path_factory.mktemp("graded") / "graded")
    put_accuracy(path, GRID)
    return path


@pytest.fixture
def busy() -> Iterator[None]:
    """Other processes keep every core busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(N_CORES)]
    yield
    for process in spinning:
        process.kill()
        process.wait()
