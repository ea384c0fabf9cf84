"""Sessions of every kind in turn, for the facts that hold of all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.session_kinds import KINDS
from tests.conformance.session_under_test import SessionUnderTest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels, packed models and exports, for all tests of a worker."""
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, folder: Path) -> Iterator[SessionUnderTest]:
    """A session of every kind in turn, which all facts share: none of them may change it."""
    kind = KINDS[request.param]
    with kind.open(folder) as session:
        yield SessionUnderTest(kind, session, folder)


@pytest.fixture
def own(shared: SessionUnderTest) -> Iterator[SessionUnderTest]:
    """A session of the same kind that a test may close."""
    with shared.kind.open(shared.folder) as session:
        yield SessionUnderTest(shared.kind, session, shared.folder)
