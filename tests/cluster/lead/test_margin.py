"""Under errors of prediction a split is rarely slower than one device; exact predictions lower its margin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.lead.margin import PRIOR, Margins
from pliant.ir.partition import DeviceGrid, Mode, Partition, Share

TOKENS = 8
SINGLE = Partition("ws", "a", (Share("a", 4, TOKENS, 0), Share("b")), TOKENS)
REMOTE = Partition("ws", "a", (Share("a"), Share("b", 4, TOKENS)), TOKENS)


def split(mode: Mode = "ws") -> Partition:
    columns = 0 if mode == "ws" else 4
    grid = DeviceGrid((("a", "b"),), (4, 4), (8,)) if mode == "2d" else None
    return Partition(mode, "a", (Share("a", 2, 4, columns), Share("b", 2, 4, columns)), TOKENS, grid)


def slower(bias: float, spread: float, n: int = 1000, seed: int = 0) -> float:
    """The part of `n` choices whose run took more than 1.05 of the best single device's.

    Each time the split's prediction is 0.4 to 1 of the single device's, and it takes a lognormal factor
    longer than predicted.
    """
    rng, margins, plan = np.random.default_rng(seed), Margins(), split()
    n_slower = 0
    for predicted_s, error in zip(
        rng.uniform(0.4, 1, n), rng.lognormal(np.log(bias), spread, n), strict=True
    ):
        is_split = predicted_s <= 1 - margins.least_gain["ws"]
        margins.observe(plan if is_split else SINGLE, predicted_s, predicted_s * error)
        n_slower += is_split and predicted_s * error > 1.05
    return n_slower / n


@pytest.mark.parametrize("spread", [0.0, 0.13, 0.5])
@pytest.mark.parametrize("bias", [0.9, 1.09, 1.4])
def test_at_most_a_twentieth_of_the_choices_is_slower_than_one_device(bias: float, spread: float) -> None:
    """A cluster must not cost its user time, however wrong its predictions of splits are."""
    assert slower(bias, spread) <= 0.05


def test_before_the_first_run_the_published_errors_make_no_more_choices_slower() -> None:
    """A cluster that runs once has learnt nothing; 1.09 and 0.13 are what 13 splits took on random sets."""
    rng, n = np.random.default_rng(1), 100_000
    predicted_s, errors = rng.uniform(0.4, 1, n), rng.lognormal(np.log(1.09), 0.13, n)
    is_split = predicted_s <= 1 - Margins().least_gain["ws"]
    assert 0.02 < np.mean(is_split & (predicted_s * errors > 1.05)) <= 0.05


@pytest.mark.parametrize("mode", ["ws", "1d", "2d"])
def test_the_margin_shrinks_where_predictions_prove_exact(mode: Mode) -> None:
    """Splits that save little are worth taking once it is known that they do; grids are priced too low."""
    margins = Margins()
    first = margins.least_gain[mode]
    for _ in range(60):
        margins.observe(split(mode), 1.0, 1.0)
    assert first == pytest.approx(1 - 1 / PRIOR[mode].p95_s)
    # The conformal step keeps the factor of a constant error within 5 % of it; grids are priced 1.25 too low.
    assert margins.least_gain[mode] <= (0.2 if mode == "2d" else 0.05)
    assert margins.least_gain[mode] < first - 0.04


def test_one_stall_moves_nothing_and_two_slow_runs_raise_the_margin() -> None:
    """A single outlier is no property of the cluster; two in a row are what the next run would meet."""
    margins = Margins()
    before = margins.least_gain["ws"]
    margins.observe(split(), 1.0, 5.0)
    assert margins.least_gain["ws"] == pytest.approx(before, abs=0.05)
    margins.observe(split(), 1.0, 1.5)
    assert margins.least_gain["ws"] >= 1 - 1 / 1.5


def test_forgotten_runs_do_not_keep_a_split_from_being_chosen() -> None:
    """A worker that became slow made splits look ten times worse than predicted, also once it was quick."""
    margins = Margins()
    before = dict(margins.least_gain)
    assert not margins.forget()
    for _ in range(2):
        margins.observe(split("ws"), 0.1, 1.0)
    assert margins.least_gain["ws"] > 0.8
    assert margins.forget()
    assert margins.least_gain == before


def test_what_one_kind_took_says_nothing_of_another() -> None:
    """Sums of the tiled modes and a link to one device err apart from what heads and rows do."""
    margins = Margins()
    for _ in range(5):
        margins.observe(split("1d"), 1.0, 3.0)
        margins.observe(REMOTE, 1.0, 2.0)
    assert margins.least_gain["1d"] > 1 - 1 / 3
    assert margins.least_gain["alone"] > 1 - 1 / 2
    for kind in ("ws", "2d"):
        assert margins.least_gain[kind] == Margins().least_gain[kind]


def test_a_split_that_was_given_up_is_tried_again() -> None:
    """Nothing is observed of a plan that does not run: without this one bad hour would forbid splits."""
    margins = Margins()
    for _ in range(5):
        margins.observe(split(), 1.0, 3.0)
    n = 0
    while margins.least_gain["ws"] > 1 - 1 / PRIOR["ws"].p95_s:
        margins.observe(SINGLE, 1.0, 1.0)
        n += 1
    assert 100 <= n <= 500


def test_plans_are_in_doubt_whenever_their_kind_must_save_more() -> None:
    """A split that was tried again stayed in use for its lengths, however slow it was then."""
    margins = Margins()
    assert [margins.observe(split(), 1.0, 3.0) for _ in range(5)] == [None, "ws", None, None, None]
    assert {margins.observe(SINGLE, 1.0, 1.0) for _ in range(200)} == {None}
    assert [margins.observe(split(), 1.0, 3.0) for _ in range(3)] == [None, "ws", None]


def test_plans_stay_in_use_while_predictions_of_their_kind_are_as_exact_as_ever() -> None:
    """Each doubt costs a search for every length."""
    margins, rng = Margins(), np.random.default_rng(3)
    found = [margins.observe(split(), 1.0, seconds) for seconds in rng.lognormal(0.0, 0.13, 2000)]
    assert sum(kind is not None for kind in found) <= 0.015 * len(found)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([SINGLE, REMOTE, split(), split("1d"), split("2d")]),
            st.floats(0.0, 1e6),
            st.floats(0.0, 1e6),
        ),
        max_size=60,
    )
)
def test_what_is_to_be_saved_is_a_part_whatever_was_observed(
    runs: list[tuple[Partition, float, float]],
) -> None:
    """A negative one would take plans that are predicted to be slower, and 1 would divide by 0."""
    margins = Margins()
    for partition, predicted_s, seconds in runs:
        margins.observe(partition, predicted_s, seconds)
        assert margins.least_gain.keys() == PRIOR.keys()
        assert all(0 <= gain < 1 for gain in margins.least_gain.values())
