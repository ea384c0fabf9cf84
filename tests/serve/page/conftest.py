"""A Chromium for the tests of the page."""

from collections.abc import Iterator

import pytest

from tests.serve.page.chromium import Chromium, chromium, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    """One for all tests, which open pages of their own; skips where there is none."""
    if find_chromium() is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with chromium() as found:
        yield found
