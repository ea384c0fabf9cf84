"""The order of test files: what takes long starts first."""

from pathlib import Path

import pytest

from tests.order import SLOW_TESTS, longest_first


def items(file: str, *marks: str, n: int) -> list[pytest.Item]:
    """`n` tests of a file, the first of which has `marks`."""

    class Marked:
        def __init__(self, number: int) -> None:
            self.path, self.number = Path(file), number

        def get_closest_marker(self, name: str) -> object:
            return name if self.number == 0 and name in marks else None

        def __repr__(self) -> str:
            return f"{self.path}:{self.number}"

    return [Marked(number) for number in range(n)]  # type: ignore[misc]


def test_files_start_by_how_long_they_take() -> None:
    """Tests that run alone come first, then files by their number of tests, a slow one counting as many."""
    files = [
        items("one", n=1),
        items("same", n=1),
        items("many", n=SLOW_TESTS),
        items("slow", "slow", n=2),
        items("alone", "alone", n=1),
    ]
    given = [item for file in files for item in file]
    order = [repr(item) for item in longest_first([*given[1:], given[0]])]
    expected = [files[4], files[3], files[2], files[1], files[0]]
    assert order == [repr(item) for file in expected for item in file]
