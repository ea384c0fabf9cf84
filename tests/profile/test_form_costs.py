"""Forms are measured beside each other; their times outlive the process; no damage to the file matters."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.profile.form_costs import CostFile, cost_file, measure


class Clock:
    """A clock that only moves when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, *seconds: float) -> tuple[Callable[[], None], list[int]]:
        """A run that takes these times in turn, and how often it ran."""
        turns, count = itertools.cycle(seconds), [0]

        def run() -> None:
            self.now += next(turns)
            count[0] += 1

        return run, count


def test_the_least_time_counts() -> None:
    """Whatever else runs on the machine only ever adds."""
    clock = Clock()
    runs = {"steady": clock.taking(2e-3)[0], "noisy": clock.taking(9e-3, 1e-3, 5e-3)[0]}
    found = measure(runs, clock)
    assert found == pytest.approx({"steady": 2e-3, "noisy": 1e-3})


def test_the_hopeless_are_not_run_again() -> None:
    """A naive loop takes seconds; twice is enough to know. The default is always measured."""
    clock = Clock()
    slow, n_slow = clock.taking(40e-3)
    default, n_default = clock.taking(30e-3)
    fast, n_fast = clock.taking(1e-3)
    measure({"slow": slow, "default": default, "fast": fast}, clock, "default")
    assert n_slow[0] == 2
    assert n_default[0] > 4
    assert n_fast[0] > 4


def test_measuring_ends() -> None:
    """A ranking that never stands is cut off."""
    clock = Clock()
    chance = itertools.cycle([3e-3, 1e-3, 2e-3, 4e-3, 1.5e-3])
    runs = {str(i): clock.taking(*itertools.islice(chance, 7))[0] for i in range(5)}
    measure(runs, clock)
    assert clock.now < 3.0


def test_times_are_kept_and_joined(tmp_path: Path) -> None:
    """Two processes add to one file; another CPU, thread count or kernel version has its own."""
    file = cost_file(tmp_path, "cpu", 2, "v1")
    file.add({"a": 1e-3})
    file.add({"b": 2e-3, "a": 3e-3})
    assert file.load() == {"a": 3e-3, "b": 2e-3}
    others = [cost_file(tmp_path, *key) for key in (("gpu", 2, "v1"), ("cpu", 1, "v1"), ("cpu", 2, "v2"))]
    assert all(other.load() == {} for other in others)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"a": "fast"}', b"[1, 2]", b"\xff\xfe", b'{"a": -1.0}', b'{"a": 1e999}']
)
def test_a_damaged_file_is_measured_again(damage: bytes, tmp_path: Path) -> None:
    """Never an error, never a time that is none; adding makes it whole."""
    file = CostFile(tmp_path / "costs.json")
    file.path.write_bytes(damage)
    assert file.load() == {}
    file.add({"b": 1e-3})
    assert file.load() == {"b": 1e-3}


def test_a_place_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    """A read-only home must not stop a compilation."""
    (tmp_path / "file").write_text("")
    file = CostFile(tmp_path / "file" / "costs.json")
    file.add({"a": 1.0})
    assert file.load() == {}
