"""What tests of several things at once share: a small model of measured accuracy, and a busy machine."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.graded_store import graded_store as graded_store
from tests.run.conftest import kernel_cache as kernel_cache

N_CORES = 2


@pytest.fixture
def busy() -> Iterator[None]:
    """Other processes keep every core busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(N_CORES)]
    yield
    for process in spinning:
        process.kill()
        process.wait()
