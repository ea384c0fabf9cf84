"""What a failed test leaves open is reported for that test.

Its exception holds the frames, and so the sockets and files that the test did not come to close. pytest keeps
the exception until the next failure: the ResourceWarning would fail an unrelated test of the same process.
"""

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Ends after the test's other fixtures; does nothing if the test passed."""
    yield
    if hasattr(sys, "last_value"):
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        gc.collect()
