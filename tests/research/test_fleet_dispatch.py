"""The simulator dispatches as nodes do: it starts the same endpoints, at the same times, for each answer."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.research.scripted_dispatch import Row, draw_script, run_real, run_simulated


def rows(log: list[Row]) -> list[tuple[str, str]]:
    return [(event, name) for _, event, name, _ in log]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_a_simulated_node_decides_as_a_real_one(seed: int) -> None:
    """Answers, refusals, lost connections and silences, in any order; in virtual time, on equal routers.

    Times of asyncio are rounded to its clock's resolution of a nanosecond.
    """
    script = draw_script(Random(seed))
    real, simulated = run_real(script), run_simulated(script)
    assert rows(simulated) == rows(real)
    for a, b in zip(simulated, real, strict=True):
        assert (a[0], a[3]) == pytest.approx((b[0], b[3]), abs=1e-6)


def test_the_scripts_lead_to_every_decision() -> None:
    """Otherwise the two would agree about little."""
    logs = [run_simulated(draw_script(Random(seed))) for seed in range(500)]
    n_tries = Counter(sum(event == "start" for event, _ in rows(log)) for log in logs)
    assert min(n_tries[n] for n in (0, 1, 2, 3, 4)) >= 5
    assert 100 < sum(bool(log[-1][2]) for log in logs) < 450
    assert sum(("overdue" in dict(rows(log))) for log in logs) >= 5
