"""What guards may use beside the fixtures of every test."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Calls of pliant go unchecked by jaxtyping, which would take ten times as long as the planners do.

    The tests of each module check shapes and types.
    """
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
