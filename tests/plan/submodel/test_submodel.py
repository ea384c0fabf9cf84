"""Compute planning against Table 6 of STI and by invariant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.plan.submodel.submodel import fitting_submodels, rank_submodels, submodels

WIDTHS = (3, 6, 9, 12)
DISK = Link(0.0, 1e9)
CPU = CostTable(tuple(LayerCost(m, 0.013 * m, 0.013 * m) for m in WIDTHS), DISK)
GPU = CostTable(tuple(LayerCost(m, 0.056, 0.056) for m in WIDTHS), DISK)


@pytest.mark.parametrize(
    ("costs", "target_s", "expected"),
    [
        (CPU, 0.150, (3, 3)),
        (CPU, 0.200, (5, 3)),
        (CPU, 0.400, (10, 3)),
        (GPU, 0.150, (2, 12)),
        (GPU, 0.200, (3, 12)),
        (GPU, 0.400, (7, 12)),
    ],
)
def test_the_submodels_of_table_6_are_chosen(
    costs: CostTable, target_s: float, expected: tuple[int, int]
) -> None:
    """The rows "Ours" of STI's Table 6: deep and narrow on the CPU, shallow and wide on the GPU."""
    best = rank_submodels(fitting_submodels(submodels(12, WIDTHS, costs), target_s))[0]
    assert (best.n, best.m) == expected


@given(
    target_s=st.floats(0.001, 3),
    times=st.lists(st.floats(0.001, 0.2), min_size=4, max_size=4).map(sorted),
    similar=st.floats(0, 0.5),
)
def test_the_first_choice_fits_and_no_fitting_one_has_many_more_shards(
    target_s: float, times: list[float], similar: float
) -> None:
    """Compute planning gives up at most the fraction `similar` of shards for depth, never the target."""
    costs = CostTable(tuple(LayerCost(m, t, t) for m, t in zip(WIDTHS, times, strict=True)), DISK)
    fits = fitting_submodels(submodels(12, WIDTHS, costs), target_s)
    order = rank_submodels(fits, similar)
    assert set(order) == set(fits)
    assert len(order) == len(fits)
    if order:
        best = order[0]
        assert best.compute_s <= target_s * (1 + 1e-9)
        assert best.n_shards >= (1 - similar) * max(c.n_shards for c in fits)
        close = [c for c in fits if c.n_shards >= (1 - similar) * max(c.n_shards for c in fits)]
        assert best.n == max(c.n for c in close)
