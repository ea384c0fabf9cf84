"""Time, energy, and what lies in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.route.choice.objective import Objective, parse_objective

AMOUNTS = st.floats(0.0, 1e6, allow_subnormal=False)
WEIGHTS = st.floats(0.0, 1.0, allow_subnormal=False)
OPTIONS = st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=8)


def cost(weights: Objective, seconds: float, joules: float) -> float:
    return weights.per_second * seconds + weights.per_joule * joules


@given(OPTIONS)
def test_the_ends_order_by_time_alone_and_by_energy_alone(options: list[tuple[float, float]]) -> None:
    """`mix:0` is `time`, `mix:1` is `energy`."""
    for text, mixed, i in (("time", "mix:0", 0), ("energy", "mix:1", 1)):
        weights = parse_objective(text)
        assert weights == parse_objective(mixed)
        ordered = sorted(options, key=lambda option: cost(weights, *option))
        assert [option[i] for option in ordered] == sorted(option[i] for option in options)


@given(OPTIONS, WEIGHTS, WEIGHTS)
def test_more_weight_of_energy_never_chooses_more_energy(
    options: list[tuple[float, float]], first: float, second: float
) -> None:
    """The choice moves one way along the options (beyond rounding of the sums)."""
    less, more = sorted((first, second))
    chosen = [
        min(options, key=lambda option: cost(parse_objective(f"mix:{weight!r}"), *option))
        for weight in (less, more)
    ]
    assert chosen[1][1] <= chosen[0][1] * (1 + 1e-9) + 1e-9 or chosen[0][0] == pytest.approx(chosen[1][0])


@pytest.mark.parametrize("text", ["", "mix", "mix:", "mix:1.1", "mix:-0.1", "mix:nan", "Time", "0.3"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    """It is an option of the command line."""
    with pytest.raises(InputError, match="is not an objective"):
        parse_objective(text)
    assert parse_objective("mix:0.3") == Objective(0.7, 0.3)
