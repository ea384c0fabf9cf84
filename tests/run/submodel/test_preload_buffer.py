"""The preload buffer, asked for its size while the IO thread adds to it."""

import sys
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest

from pliant.ir.program import SliceRun
from pliant.run.submodel.preload_buffer import PreloadBuffer


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_its_size_can_be_asked_while_a_run_keeps_weights() -> None:
    """A reply says how many bytes are held, and the IO lane may still read for the same engagement."""
    buffer, n_runs, n_bytes = PreloadBuffer(), 3000, 64
    payload = np.zeros(n_bytes, np.uint8)

    def keep() -> None:
        for layer in range(n_runs):
            buffer.keep(SliceRun(layer, 0, 0, 1), payload)

    thread = Thread(target=keep)
    thread.start()
    while thread.is_alive():
        assert 0 <= buffer.n_bytes <= n_runs * n_bytes
        assert buffer.planes((n_runs, 1)).sum() <= n_runs
    thread.join()
    assert buffer.n_bytes == n_runs * n_bytes
