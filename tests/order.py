"""The order of test files for pytest-xdist, which gives a whole file to the next free worker.

A long file that starts last would run beside an idle worker.
"""

from collections.abc import Sequence

import pytest

SLOW_TESTS = 50
"""A test marked `slow` counts as this many."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """`items` by file: files with tests marked `alone` first, then the others, the longest first.

    The order within a file does not change, nor that of files of the same length.
    """
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return [item for file in sorted(files.values(), key=_weight, reverse=True) for item in file]


def _weight(items: Sequence[pytest.Item]) -> tuple[bool, int]:
    is_alone = any(item.get_closest_marker("alone") for item in items)
    n_slow = sum(item.get_closest_marker("slow") is not None for item in items)
    return is_alone, len(items) + n_slow * (SLOW_TESTS - 1)
