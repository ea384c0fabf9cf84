"""Tell runs of samples from requests, which a shared memory budget counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_SAMPLE = ContextVar("pliant_is_sample", default=False)


@contextmanager
def sampling() -> Iterator[None]:
    """Run samples in this thread or task: memory budgets do not count them as requests."""
    token = _IS_SAMPLE.set(True)
    try:
        yield
    finally:
        _IS_SAMPLE.reset(token)


def is_sample() -> bool:
    """Whether this thread or task runs a sample."""
    return _IS_SAMPLE.get()
